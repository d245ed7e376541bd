"""Options that take several values in one, such as --gpus 64,128."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parlay.cli import output
from parlay.cli.flags import MOST_GPUS
from parlay.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parlay.hardware.spec import Cluster
    from parlay.layouts.workload import Workload
    from parlay.models.spec import ModelSpec

MOST_VALUES = 64


def texts_of(text: str, where: str, *, like: str = "64,128") -> list[str]:
    """Return the parts of "a,b", each once; none of them empty."""
    parts = list(dict.fromkeys(p.strip() for p in text.split(",")))
    if not all(parts) or len(parts) > MOST_VALUES:
        raise UsageError(f"'{text[:60]}' is not a list of 1 to {MOST_VALUES} values", where=where, hint=f"write it like {like}")
    return parts


def counts_of(text: str, where: str, *, most: int = MOST_GPUS) -> list[int]:
    """Return the whole numbers of "64,128", in rising order; K, M and B are understood."""
    from parlay.units import parse_count

    counts = sorted({parse_count(int(t) if t.isdecimal() and len(t) < 20 else t, where=where) for t in texts_of(text, where)})
    for count in counts:
        if not 1 <= count <= most:
            raise UsageError(f"must be a whole number from 1 to {most:,}, got {count:,}", where=where)
    return counts


def clusters_of(text: str, where: str = "--on") -> list[Cluster]:
    """Return the clusters of "a,b": names of the catalog or files."""
    from parlay.hardware.load import load_cluster, user_catalog_directory

    return [load_cluster(name, user_catalog_directory()) for name in texts_of(text, where, like="dgx-h100,dgx-h200")]


def models_of(text: str, where: str = "MODEL") -> list[ModelSpec]:
    """Return the models of "a,b": names of the catalog or files; what was assumed to read a config.json is noted on stderr."""
    from parlay.models.load import is_config, load_model

    found = []
    for name in texts_of(text, where, like="llama-3.1-8b,llama-3.1-70b"):
        if is_config(name):
            from parlay.models.huggingface import import_config

            read = import_config(name)
            output.note(*(f"{name}: {x}" for x in read.assumed))
            found.append(read.spec)
        else:
            found.append(load_model(name))
    return found


def idle_notes(models: Sequence[ModelSpec], workload: Workload) -> list[str]:
    """Return what was set of training and changes nothing, each once; where it does for some models, the others are named."""
    from parlay.estimate.idle import idle_in_training

    each = {model.id: idle_in_training(model, workload) for model in models}
    found = dict.fromkeys(note for notes in each.values() for note in notes)
    told = {note: [name for name, notes in each.items() if note in notes] for note in found}
    return [note if len(names) == len(each) else f"{', '.join(names)}: {note}" for note, names in told.items()]


def check_size(cluster: Cluster, gpus: int) -> None:
    """Raise UsageError where a cluster has fewer GPUs than asked for."""
    limit = cluster.max_nodes.value * cluster.gpus_per_node.value if cluster.max_nodes else None
    if limit and gpus > limit:
        raise UsageError(f"{cluster.name} has {limit:,.0f} GPUs, not {gpus:,}", where="--gpus")
