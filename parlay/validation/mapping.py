"""From a run's published settings to what Parlay prices: model, cluster, workload and layout.

Nothing here looks at what was measured. A setting that the source does not give takes the framework's documented
default of that date, and the case says so; a run that cannot be mapped says why.
"""

from __future__ import annotations

import dataclasses
import re

from parlay.errors import ParlayError
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layout
from parlay.layouts.split import V_SHAPED, sizes_by_cost
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.specfile import validate
from parlay.validation import settings as words
from parlay.validation.architectures import architecture
from parlay.validation.clusters import cluster_of
from parlay.validation.habits import (
    BF16_LAYERS,
    CUDNN_SDPA_SINCE,
    EVERY,
    KNOWN,
    LATENT_BLACKWELL_SINCE,
    LORA,
    SQUAD_TOKENS,
    Habit,
    era_of,
    habit_of,
    keeps_remainder,
)
from parlay.validation.runs import NUMBER, Run, number_of

EXPERT_FOLDING_SINCE = "2025-01-01"  # before, Megatron's experts were split by tp as everything else (core 0.9)


# Words of a run's notes -> schedule; the first that matches wins, unless the notes say that it is not used.
SCHEDULES_NAMED = (
    (r"dualpipe-?v", "dualpipev"), (r"dualpipe", "dualpipe"), (r"zero[- ]bubble[- ]v\b|\bzb-?v", "zb-v"), (r"\bzb-?h2|\bzb2p", "zb-h2"),
    (r"\bzb-?h1|\bzb1p|zero[- ]bubble", "zb-h1"), (r"\bgpipe\b", "gpipe"),
)  # fmt: skip
DENIED = r"(?<!no )(?<!not )(?<!w/o )(?<!non-)(?<!without )"  # before a word
DENIED_AFTER = r"(?! (?:is |was )?(?:not |disabled|off\b|rows\b))"  # behind it
ACCUMULATION = r"\b(?:grad(?:ient)?[ _-]accum(?:ulation)?(?:[ _-]steps)?|accumulate|gas|ga)[ =:]+(\d+)"


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A run as Parlay prices it. `scale` is how many of the priced steps make the printed one."""

    run: Run
    model: ModelSpec
    cluster: Cluster
    workload: Workload
    layout: Layout
    assumptions: tuple[str, ...]
    scale: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Unmapped:
    """A run that cannot be priced, and why."""

    run: Run
    reason: str


# What odd cells may raise beyond Parlay's own errors.
ODD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class _Refused(Exception):
    """The reason why a run cannot be mapped."""


def map_run(run: Run) -> Case | Unmapped:
    """Return a run as a Case, or as Unmapped with its reason."""
    if run.format == "megatron-ci":
        from parlay.validation.mapping_ci import map_ci

        return map_ci(run)
    try:
        return _map(run)
    except _Refused as refused:
        return Unmapped(run, str(refused))
    except ParlayError as error:
        named = (error.where or "").removeprefix(run.id).strip(": ")  # the setting, where a specification refuses one
        return Unmapped(run, f"{named} {error.message}".strip())
    except ODD as error:  # one odd row must not lose the others
        return Unmapped(run, f"a cell of this row cannot be understood ({type(error).__name__}: {str(error)[:80]})")


def _map(run: Run) -> Case:
    if run.problems:
        raise _Refused(run.problems[0])
    habit = habit_of(run)
    if habit is None:
        raise _Refused(f"the framework '{run.framework[:40]}' is not known; known are {KNOWN}")
    said = [*run.readings, *([habit.said] if habit.said else [])]
    _refuse_untold_layers(run)
    model, shape = architecture(run.model, run.arch)
    cluster, network = cluster_of(run)
    if cluster is None:
        raise _Refused(f"no cluster of the catalog has the device '{run.hardware[:40]}'")
    said += [*shape, *([network] if network else [])]
    date = era_of(run, habit)
    degrees = _degrees(run, date, bool(model.kinds), said)
    micro, batch, scale = _batch(run, degrees, said)
    layout = _layout(run, habit, model, degrees, micro, said)
    workload, model = _workload(run, habit, model, cluster, date, batch, said)
    return Case(run, model, cluster, workload, layout, tuple(said), scale)


def _refuse_untold_layers(run: Run) -> None:
    """Raise _Refused for a proxy of a model whose number of layers is not printed ("layers reduced below 512 GPUs (proxy)")."""
    reduced = re.search(r"layers reduced(?: below (\d+) gpus)?", f"{run.notes} {run.model}".lower())
    told = run.arch.get("layers") is not None or re.search(r"\d+ ?(layers|l\b)", run.model.lower())
    if reduced and not told and (run.gpus or 0) < int(reduced[1] or 1 << 30):
        raise _Refused("a proxy with fewer layers than its model, whose number is not printed")


def _degrees(run: Run, date: str, experts: bool, said: list[str]) -> dict[str, int]:
    """Return tp, cp, pp, dp, vpp, ep and etp."""
    cp = run.cp or 1
    tp, pp = _model_parallel(run, cp)
    gpus = run.gpus or tp * pp * cp * (run.dp or 1)
    if gpus % (tp * pp * cp):
        raise _Refused(f"tp{tp} x cp{cp} x pp{pp} does not divide {gpus} GPUs")
    dp = gpus // (tp * pp * cp)
    if run.dp and run.dp != dp:
        # some tables count context-parallel ranks into the column, or leave expert-parallel ones out
        if run.dp != dp * cp and run.dp * (run.ep or 1) != dp:
            raise _Refused(f"tp{tp} x cp{cp} x pp{pp} x dp{run.dp} is not the {gpus} GPUs printed")
        said.append(f"data parallelism {dp}, from the GPUs printed (the column says {run.dp})")
    ep = run.ep or 1
    etp = run.etp or 1
    if run.etp is None and ep > 1 and tp > 1:
        folded, fits = date >= EXPERT_FOLDING_SINCE, (tp * cp * dp) % (tp * ep) == 0
        etp = 1 if folded or not fits else tp
        why = "recipes set 1" if folded else "the same as tp before 2025" if fits else "tp's would need more GPUs"
        said.append(f"expert tensor parallelism {etp} ({why})")
    vpp = run.vpp or 1
    if run.vpp is None and pp > 1:
        vpp = 2 if re.search(r"interleaved", run.setting("overlap_notes").lower()) else 1
        said.append(f"{vpp} virtual stage{'s' if vpp > 1 else ''}")
    return {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep, "etp": etp, "vpp": vpp if pp > 1 else 1}


def _model_parallel(run: Run, cp: int) -> tuple[int, int]:
    """Return tp and pp; one that is not printed follows from GPUs and the others, and pure data parallelism says both."""
    if run.tp is not None and run.pp is not None:
        return run.tp, run.pp
    if run.tp is None and run.pp is None and run.dp is None:
        raise _Refused("the layout is not printed")
    rest = (run.tp or 1) * (run.pp or 1) * cp * (run.dp or 0)
    if run.gpus is None or not rest or run.gpus % rest or (run.tp is None and run.pp is None and run.gpus != rest):
        raise _Refused("tp or pp is not printed")
    return run.tp or run.gpus // rest, run.pp or run.gpus // rest


def _batch(run: Run, degrees: dict[str, int], said: list[str]) -> tuple[int, int, float]:
    """Return micro-batch, global batch, and the factor from the priced batch to the printed one."""
    dp, pp = degrees["dp"], degrees["pp"]
    batch, micro = run.global_batch, run.micro_batch
    local = re.search(r"(?:local batch|batch size per dp=?) ?(\d+)", run.notes.lower())
    steps = re.search(ACCUMULATION, run.notes.lower())
    in_tokens = re.search(rf"global batch (?:of )?{NUMBER} ?([km]?) tokens", run.notes.lower())
    if batch is None and local:
        batch = int(local[1]) * dp
    elif batch is None and in_tokens and run.seq_len:
        batch = _sequences(number_of(in_tokens[1]), in_tokens[2], run.seq_len)
        said.append(f"global batch {batch}: {in_tokens[1]}{in_tokens[2].upper()} tokens")
    elif batch is None and micro is not None:
        rounds = int(steps[1]) if steps else 1
        batch = micro * dp * rounds
        said.append(f"global batch {batch}: {rounds} micro-batch{'es' if rounds > 1 else ''} a rank")
    if batch is None:
        raise _Refused("neither the global batch nor the micro-batch is printed")
    if micro is None:
        splits = local is not None and pp > 1  # torchtitan cuts the local batch into as many micro-batches as stages
        micro = max(1, batch // dp // pp) if splits else 1
        said.append(f"micro-batch {micro}")
    if pp > 1 and "automodel" in run.framework.lower() and micro > 1:
        # what its tables call the local batch is cut into micro-batches of one, and each local batch is a pipeline of its own
        if batch % (micro * dp):
            raise _Refused(f"local batches of {micro} on dp={dp} ranks do not divide the global batch of {batch} sequences")
        said.append(f"the local batch of {micro} cut into micro-batches of 1 (its default, pp_microbatch_size)")
        return 1, micro * dp, batch / (micro * dp)
    return micro, batch, 1.0


def _sequences(amount: float, unit: str, seq_len: int) -> int:
    """Return the sequences in so many tokens; K and M are powers of two where these alone give whole sequences."""
    power = {"": 0, "k": 1, "m": 2}[unit]
    both = [amount * base**power / seq_len for base in (1000, 1024)]
    return max(1, round(next((float(x) for x in both if x == int(x)), both[0])))


def _layout(run: Run, habit: Habit, model: ModelSpec, degrees: dict[str, int], micro: int, said: list[str]) -> Layout:
    printed = run.setting("recompute")
    recompute = words.recompute_of(printed)
    each = words.every_nth(printed)
    if each:
        recompute = (("full",), -(-model.layer_count // each))
    elif habit.framework == "torchtitan" and printed.strip().lower() == "selective":
        recompute = (("selective_ops",), 0)  # torchtitan's default option of its selective mode
    if recompute is None:
        recompute = (habit.recompute, 0)
        said.append(f"recompute {'+'.join(habit.recompute) or 'none'} ({_unread(printed)})")
    zero = words.zero_of(run.setting("fsdp_or_zero"))
    if zero is None:
        zero = (habit.zero, None, None)
        if degrees["dp"] > 1:
            said.append(f"ZeRO stage {zero[0]} ({_unread(run.setting('fsdp_or_zero'))})")
    overlap = words.switch_of(run.setting("tp_overlap"))
    note = run.setting("overlap_notes").lower()
    if overlap is None:
        overlap = "tp-comm-overlap" in note or "async tp" in note
    split = run.setting("pipeline_layout")
    written = words.layers_by_chunk(split, degrees["pp"], degrees["vpp"])
    if written is None and degrees["pp"] > 1 and split and not re.match(r"n/a|uniform|\d+ slots", split.lower()):
        said.append(f"layers split by the framework's rule (pipeline_layout {_unread(split)})")
    first, last = written or (_ends_by_cost(model, degrees["pp"]) if habit.by_cost else (None, None))
    if (first or 0) + (last or 0) > model.layer_count:
        raise _Refused(f"pipeline_layout gives more layers than the {model.layer_count} of the model")
    share = words.offloaded_share(run.setting("offload"), model.layer_count)
    shard = zero[1] or (words.zero_of(run.columns.get("fsdp_or_zero", "")) or (0, None, None))[1]
    ranks, schedule = degrees["dp"] * degrees["cp"], _schedule(run)
    if schedule in V_SHAPED and degrees["pp"] > 1:
        degrees = degrees | {"vpp": 2}  # two chunks a stage, down the pipeline and up again
    fields = {
        **degrees,
        "sp": (run.sp if run.sp is not None else habit.sp) and degrees["tp"] > 1,
        "cp_kind": "zigzag" if re.search(r"\bring\b", run.notes.lower()) else habit.cp_kind,
        "schedule": schedule,
        "zero": zero[0],
        "shard": shard if shard and ranks % shard == 0 else None,
        "micro_batch": micro,
        "recompute": recompute[0],
        "recompute_layers": recompute[1],
        "first_layers": first,
        "last_layers": last,
        "tp_overlap": bool(overlap) and degrees["tp"] > 1,
        "ep_overlap": bool(words.switch_of(run.setting("ep_overlap"))) and degrees["ep"] > 1,
        "offload_activations": share or 0.0,
        "offload_optimizer": _optimizer_on_host(run, share, said),
    }
    return validate(Layout, fields, run.id)


def _ends_by_cost(model: ModelSpec, stages: int) -> tuple[int | None, int | None]:
    """Return the layers of the first and last stage where layers are dealt out by cost; None for layers of several kinds."""
    kind = next(iter(model.kinds.values()))
    if stages == 1 or len(model.kinds) > 1 or kind.mixer.kind != "gqa" or kind.mlp.kind != "dense":
        return None, None
    layer = model.hidden * (4 * kind.mixer.heads * kind.mixer.head_dim + 3 * kind.mlp.width)
    sizes = sizes_by_cost(model.layer_count, stages, layer, model.hidden * model.vocab)
    return sizes[0], sizes[-1]


def _optimizer_on_host(run: Run, activations: float | None, said: list[str]) -> float:
    """Return the share of the optimizer that runs on the host; ml-engineering's long runs offload it with the checkpoints."""
    offload = run.setting("offload").lower()
    if "activation checkpoints" in offload and "liger" in run.framework.lower():
        said.append("the optimizer is offloaded with the checkpoints (the source's text)")
        return 1.0
    share = words.optimizer_offloaded(offload)
    if not share and activations is None and offload and not re.match(r"none|no\b|off\b|n/a", offload):
        said.append(f"nothing offloaded ('{offload[:50]}' is not modelled)")
    return share


def _unread(text: str) -> str:
    """Return why a framework's default stands in for a setting."""
    return f"'{text[:40]}' is not understood" if text else "not printed"


def _schedule(run: Run) -> str | None:
    note = f"{run.setting('overlap_notes')} {run.notes}".lower()
    return next((name for pattern, name in SCHEDULES_NAMED if re.search(f"{DENIED}(?:{pattern}){DENIED_AFTER}", note)), None)


def _workload(
    run: Run, habit: Habit, model: ModelSpec, cluster: Cluster, date: str, batch: int, said: list[str]
) -> tuple[Workload, ModelSpec]:  # fmt: skip
    precision = words.precision_of(run.precision)
    if precision is None:
        raise _Refused(f"the precision '{run.precision[:40]}' is not known" if run.precision else "the precision is not printed")
    if run.seq_len is None:
        raise _Refused("the sequence length is not printed")
    model, multiple = _as_trained(run, model, said)
    states = run.setting("optimizer_state_dtypes")
    # What is accumulated and reduced is the buffer's format; "main grads" are how the optimizer reads it.
    main = words.gradient_of(states) if "main grads" in states else None
    gradient = words.gradient_of(run.setting("grad_dtype")) or main or habit.gradient
    if gradient is None and precision == "bf16":
        gradient = habit.bf16_gradient
    master, moment = words.states_of(states, precision)
    if habit.pure and precision == "bf16" and not states:
        master, moment = "bf16", "bf16"
    if master is None and precision == "bf16" and keeps_remainder(habit, date, model.id):
        master = "fp16"
        said.append("precision-aware optimizer: the main weight's 16-bit remainder beside the bf16 weight (recipes' default)")
    graphs, modules = words.graphs_of(run.setting("cuda_graph"))
    note = run.setting("overlap_notes").lower()
    routing = run.setting("moe_routing") or run.notes
    fields = {
        **_fine_tuning(run, said),
        "seq_len": run.seq_len,
        "global_batch": batch,
        "precision": precision,
        "framework": habit.framework,
        "flash_attention": habit.flash and _has_kernel(run, model, cluster, date, said),
        "gradient_dtype": gradient,
        "master_dtype": master,
        "moment_dtype": moment,
        "cross_entropy": words.loss_of(run.setting("loss_fusion")) or _loss_in_notes(note) or habit.loss,
        "vocab_multiple": multiple,
        **_bf16_layers(run, model, precision, said),
        "shards_in_place": habit.in_place,
        "dropout": habit.dropout,
        "moe_capacity_factor": words.capacity_of(routing),
        "overlap_grad_reduce": _overlap(run, "dp_overlap_grad", "overlap-grad-reduce", habit),
        "overlap_param_gather": _overlap(run, "dp_overlap_param", "overlap-param-gather", habit),
        "overlap_p2p": words.switch_of(run.setting("pp_overlap")),
        "reshard_after_forward": (words.zero_of(run.setting("fsdp_or_zero")) or (0, None, None))[2],
        "cuda_graphs": graphs,
        "cuda_graph_modules": modules,
        "moe_dispatcher": words.dispatcher_of(run.setting("moe_dispatcher")),
        "moe_grouped": False if "grouped gemm off" in run.setting("note").lower() else None,
        "attention_kernel": _attention_kernel(run, habit, date),
        "fp8_attention": True
        if "fp8 attention" in run.setting("attention_backend").lower() and habit.framework == "megatron-core"
        else None,
        "compiled": True if "torch.compile" in note else False if "eager" in note else habit.compiled,
        "loss_compiled": False if "not compiled" in run.setting("loss_fusion").lower() else None,
        "framework_date": date,
    }
    if words.switch_of(run.setting("dp_overlap_grad")) is None and habit.overlap is not None and not note:
        said.append(f"gradient reduction {'overlapped' if habit.overlap else 'after the last backward'} (not printed)")
    return validate(Workload, fields, run.id), model


def _fine_tuning(run: Run, said: list[str]) -> dict[str, object]:
    """Return the fields of packed documents, and of adapters where only these are trained."""
    text = f"{run.notes} {run.setting('note')}".lower()
    found: dict[str, object] = {}
    told = f"{text} {run.model} {run.source}".lower()
    if re.search(rf"{DENIED}\bqlora\b{DENIED_AFTER}", told):
        raise _Refused("QLoRA: base weights in four bits are not modelled")
    adapts = re.search(rf"{DENIED}\b(?:lora|dora|peft)\b{DENIED_AFTER}", told) or run.setting("lora_rank")
    packed = re.search(r"\bpacked\b.*\bsft\b|\bsft\b.*\bpacked\b|\bsquad\b", text) or (adapts and "fine-tuning" in text)
    if packed:
        found["document_len"] = SQUAD_TOKENS
        said.append(f"sequences packed from SQuAD's examples of some {SQUAD_TOKENS} tokens (the recipes' dataset)")
    if adapts:
        rank, modules = next((rank, modules) for pattern, rank, modules in LORA if re.search(pattern, run.framework.lower()))
        printed = re.search(r"(?<!memory of )\brank[ =]*([1-9]\d*)|\br ?= ?([1-9]\d*)", text)
        given = run.setting("lora_rank") or (printed and (printed[1] or printed[2]))
        modules = ("qkv",) if "linear_qkv only" in text else EVERY if re.search(r"all linear|every linear", text) else modules
        found |= {"lora_rank": given or rank, "lora_modules": modules}
        said.append(f"LoRA of rank {given or rank} on {', '.join(modules)}{'' if given else ' (rank: the recipe default)'}")
    return found


def _bf16_layers(run: Run, model: ModelSpec, precision: str, said: list[str]) -> dict[str, int]:
    """Return the last layers that a recipe of this framework keeps in bf16 for this model."""
    kept = BF16_LAYERS.get((run.framework.lower(), model.id, precision), 0)
    if kept:
        said.append(f"the last {kept} layers keep bf16 products (the recipe's default)")
    return {"bf16_layers": kept, "bf16_layers_at_start": 0} if kept else {}


def _attention_kernel(run: Run, habit: Habit, date: str) -> str | None:
    """Return the attention kernel that the source names; PyTorch's own choice is cuDNN's where its build prefers that."""
    backend = run.setting("attention_backend")
    if habit.nvidia_torch and date >= CUDNN_SDPA_SINCE and (not backend or "sdpa" in backend.lower()):
        return "cudnn"
    return words.attention_kernel_of(backend) or _kernel_in_notes(run)


def _has_kernel(run: Run, model: ModelSpec, cluster: Cluster, date: str, said: list[str]) -> bool:
    """Return whether a fused attention kernel runs: not where the source says so, nor before there was one for the model's heads."""
    if "unfused" in run.setting("attention_backend"):
        return False
    latent = any(kind.mixer.kind == "mla" for kind in model.kinds.values())
    named = re.search("cudnn|fused|flash", run.setting("attention_backend").lower())
    if latent and not named and date < LATENT_BLACKWELL_SINCE and cluster.device.architecture.startswith("blackwell"):
        said.append("latent attention not fused: Transformer Engine had no kernel for its backward on Blackwell")
        return False
    return True


def _kernel_in_notes(run: Run) -> str | None:
    """Return the attention kernel that the notes name for this device ("FA3 on H200, FA4 on B200")."""
    found = re.search(rf"\bfa([234]) on {re.escape(run.hardware.split('-')[0])}", run.notes.lower())
    return f"flash-{found[1]}" if found else None


def _loss_in_notes(note: str) -> str | None:
    return "te" if "cross-entropy fusion on" in note else None


def _overlap(run: Run, setting: str, flag: str, habit: Habit) -> bool | None:
    given = words.switch_of(run.setting(setting))
    note = run.setting("overlap_notes").lower()
    if given is not None:
        return given
    if "grad/param/tp overlap off" in note:
        return False
    return True if flag in note else habit.overlap


def _as_trained(run: Run, model: ModelSpec, said: list[str]) -> tuple[ModelSpec, int | None]:
    """Return the model with the run's vocabulary and multi-token prediction, and what the vocabulary is padded to."""
    change: dict[str, int] = {}
    depth = words.mtp_of(run.setting("mtp"))
    if depth is None:
        depth = 0
        if model.mtp_layers:
            said.append("multi-token prediction off (not printed)")
    if depth != model.mtp_layers:
        if depth and not model.mtp_kind:
            raise _Refused("the shape of the multi-token-prediction layer is not known")
        change["mtp_layers"] = depth
    vocabulary = words.vocabulary_of(run.setting("vocab"))
    if vocabulary and vocabulary != model.vocab:
        change["vocab"] = vocabulary
    if change:
        model = model.model_copy(update=change)
    return model, 1 if vocabulary else None
