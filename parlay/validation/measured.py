"""What a run measured, as seconds of a step: printed, or from tokens/s, or from FLOP/s by the source's own convention."""

from __future__ import annotations

import dataclasses
import re

from parlay.estimate.adapters import trained_adapters
from parlay.estimate.counts import flops_per_token
from parlay.validation.mapping import Case
from parlay.validation.runs import NUMBER, number_of

# The columns' descriptions of a FLOPs convention -> conventions of parlay.estimate.counts; first match wins.
CONVENTION_WORDS: tuple[tuple[str, str], ...] = (
    (r"hfu.*(factor 4|96\*b|full recompute)|hfu: megatron formula with recompute|megatron formula \(hfu\)", "narayanan"),
    (r"72bl|72 b", "korthikanti"),
    (r"6n \+ 12\*l\*d\*s|llm-foundry", "llm-foundry"),
    (r"6n ?\+ ?12lhs", "torchtitan"),
    (r"palm", "palm"),
    (r"nanotron", "nanotron"),
    (r"bridge flop_utils|automodel|megatron model flops|nemo2", "megatron"),
    (r"non-causal|full attention", "korthikanti"),
    (r"causal", "megatron"),
)


APART = 0.05  # a printed step and a printed speed that differ by more contradict each other; those of sources agree within 0.4 %


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of the step that was measured, and how they follow from what is printed; None with the reason.

    `against` says which other printed figure contradicts them, "" if none does.
    """

    step_s: float | None
    how: str
    against: str = ""


def measured_step(case: Case) -> Measured:
    """Return the measured seconds of a step.

    Printed seconds win; then samples or tokens per second; then FLOP/s per GPU with the source's convention. A source whose
    convention is not known for sure gives none.
    """
    run = case.run
    batch = case.workload.global_batch * case.scale
    tokens, gpus = batch * case.workload.seq_len, case.layout.gpus
    if run.step_s is not None:
        other = tokens / (run.tokens_per_s_per_gpu * gpus) if run.tokens_per_s_per_gpu else run.step_s
        apart = (
            f"the step of {run.step_s:.4g} s is compared, though {run.tokens_per_s_per_gpu:,.6g} tokens/s per GPU make it {other:.4g} s"
            if abs(other / run.step_s - 1) > APART
            else ""
        )
        return Measured(run.step_s, "printed", apart)
    if run.tokens_per_s_per_gpu is not None:
        return Measured(tokens / (run.tokens_per_s_per_gpu * gpus), "tokens/s per GPU")
    samples = re.search(rf"{NUMBER} samples/s cluster total", run.notes)
    if samples:
        return Measured(batch / number_of(samples[1]), "samples/s of the cluster")
    total = re.search(rf"{NUMBER} tokens/s total|cluster total {NUMBER} tokens/s", run.notes)
    if total:
        return Measured(tokens / number_of(total[1] or total[2]), "tokens/s of the cluster")
    if run.flops_per_s_per_gpu is not None:
        return _from_flops(case, tokens, gpus)
    only = ", an MFU alone" if run.columns.get("mfu", "").strip() else ""
    return Measured(None, f"the source prints no step time, tokens/s or FLOP/s for this run{only}")


def _from_flops(case: Case, tokens: float, gpus: int) -> Measured:
    low = case.run.flops_convention.lower()
    name = next((convention for pattern, convention in CONVENTION_WORDS if re.search(pattern, low)), None)
    if name is None or case.run.flops_per_s_per_gpu is None:
        return Measured(None, "FLOP/s in a convention that is not known")
    correction = 1.03 if "3% low" in low else 1.0  # bigscience's calculator of before 2022-02-21 read 3 % low
    each = flops_per_token(
        case.model, case.workload.seq_len, convention=name, mtp=case.model.mtp_layers > 0,
        adapters=trained_adapters(case.model, case.workload),
    )  # fmt: skip
    return Measured(each * tokens / (case.run.flops_per_s_per_gpu * correction * gpus), f"FLOP/s, {name} convention")
