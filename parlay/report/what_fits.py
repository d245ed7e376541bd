"""The guide "what fits on my GPUs", made from ladders."""

from __future__ import annotations

from parlay.hardware.load import load_cluster
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.report.ladder import ladder_lines, serving_lines
from parlay.report.table import Page
from parlay.search.ladder import (
    EXPERT_WIDTH,
    EXPERTS,
    KV_HEADS,
    LAYERS_PER_HIDDEN,
    TOP_K,
    VOCABULARY,
    WIDTH,
    Ladder,
    ladder,
    model_ladder,
)
from parlay.search.serving import serve
from parlay.units import show_count

CLUSTERS, COUNTS = ("dgx-a100-40gb", "dgx-a100"), (8, 16)
MODEL, SERVED = "llama-3.1-70b", "llama-3.1-70b"

INTRO = """# What fits on my GPUs

`parlay ladder` climbs rung by rung: each rung allows what the rungs before it allow and one kind of parallelism more, and takes the
largest model of a family for which any layout fits. Of the layouts that fit, the fastest is shown.

    parlay ladder --on dgx-a100-40gb,dgx-a100 --gpus 8,16

"""


def what_fits_page() -> str:
    """Return the page: dense shapes, shapes with experts, one model, and serving."""
    workload = Workload()
    dense = [ladder(load_cluster(c), n, workload) for c in CLUSTERS for n in COUNTS]
    mixture = ladder(load_cluster(CLUSTERS[1]), COUNTS[1], workload, experts=True)
    given = model_ladder(load_model(MODEL), load_cluster(CLUSTERS[1]), COUNTS[1], workload)
    served = serve(load_cluster(CLUSTERS[1]), COUNTS[0], 8192, model=load_model(SERVED))
    parts = [INTRO, _family(), "## In short\n\n", _short(dense), "\n## Dense models\n\n"]
    parts += [_block(ladder_lines([x], Page())) for x in dense]
    parts += ["## Models with experts\n\nThe same with `--experts`.\n\n", _block(ladder_lines([mixture], Page()))]
    parts += [f"## One model\n\n`--model {MODEL}` asks for the fewest GPUs (parts of a node and whole nodes; the batch grows where it has "
              "fewer sequences than ranks) and for the longest sequence on the GPUs given.\n\n",
              _block(ladder_lines([given], Page()))]  # fmt: skip
    parts += [f"## Serving\n\n`--serve --model {SERVED} --seq-len 8192`: weights, K/V cache and activations on each GPU, the largest "
              "batch, and the least time of a token. Without `--model` it takes the largest shape for each split.\n\n",
              _block(serving_lines(served, Page()))]  # fmt: skip
    return "".join(parts) + LIMITS


def _family() -> str:
    return (
        f"The dense family is Llama-like: about one layer for {LAYERS_PER_HIDDEN} of hidden size, an MLP {WIDTH:g} times as wide, "
        f"{KV_HEADS} key/value heads, a vocabulary of {VOCABULARY:,}. The other one has {EXPERTS} experts in every layer, {TOP_K} a token, "
        f"each {EXPERT_WIDTH:g} times as wide as the hidden size. Training is {Workload().precision} with {Workload().optimizer}, "
        f"{Workload().seq_len:,} tokens a sequence, as {Workload().framework} keeps it in memory.\n\n"
    )


def _short(found: list[Ladder]) -> str:
    """Return a table of the sizes alone: a column for each number of GPUs and kind of cluster."""
    head = ["rung", *(f"{x.gpus} x {x.limit_bytes / 2**30:.0f} GiB" for x in found)]
    rows = [[step.rung, *(show_count(x.steps[i].parameters) for x in found)] for i, step in enumerate(found[0].steps)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows]) + "\n"


def _block(lines: list[str]) -> str:
    return "```text\n" + "\n".join(lines) + "\n```\n\n"


LIMITS = """## What to keep in mind

- Sizes are steps of a family: hidden sizes in steps of 1,024 and five depths each, so a size may be a few percent below the true limit.
- A rung that adds nothing is shown all the same.
- Memory is what `parlay estimate` says, with its assumptions; plan for a few GiB of headroom.
- "on the host" needs room there: main weights and moments, and activations of all GPUs of a host, must fit its memory, and the speed falls with the host link.
- HSDP, other schedules and narrower states than bf16 weights and fp32 moments are not rungs.
"""
