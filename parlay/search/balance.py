"""A last stage that is lighter by what its head weighs, where the split rule's one layer for the head is far too little."""

from __future__ import annotations

from parlay.estimate.counts import matmul_weights, score_flops
from parlay.layouts.split import chunk_sizes
from parlay.models.spec import ModelSpec

WORTH = 0.05  # a slowest stage that gets shorter by less than this is not worth an option of its own

LIGHTER = -2  # in a Space, in place of the last stage's layers: what `lighter_last` gives, where it gives any


def lighter_last(model: ModelSpec, seq_len: int, stages: int) -> int | None:
    """Return how many layers the last of `stages` stages should hold, or None where the split rule is as good.

    Head and prediction modules are weighed in layers by the FLOPs of a token; the stages are then as equal as whole
    layers allow. DeepSeek-V3's two heads of 129,280 rows and its module weigh as much as four layers: one is left for the last of 16 stages.

    Examples
    --------
    >>> from parlay.models.load import load_model
    >>> lighter_last(load_model("deepseek-v3"), 4096, 16), lighter_last(load_model("llama-2-70b"), 4096, 8)
    (1, None)
    """
    if stages < 2:
        return None
    names = model.layer_names()
    flops = {k: 2 * matmul_weights(model, v) + score_flops(v, seq_len, causal_half=True) for k, v in model.kinds.items()}
    layer = sum(flops[n] for n in names) / len(names)
    head = 2 * model.hidden * model.vocab * (1 + model.mtp_layers)
    module = model.mtp_layers * (flops[model.mtp_kind] if model.mtp_kind else 0.0)
    weight = (head + module) / layer
    rule = chunk_sizes(len(names), stages, 1, tail=1 + model.mtp_layers)
    now = max(*rule[:-1], rule[-1] + weight)
    best, at = now, None
    for last in range(1, rule[-1]):
        longest = max(-(-(len(names) - last) // (stages - 1)), last + weight)
        if longest < best * (1 - 1e-9):
            best, at = longest, last
    return at if best < (1 - WORTH) * now else None
