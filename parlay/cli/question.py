"""What the user asks, from flags, a run file and --set: model, cluster, GPUs, workload, layout, budget."""

from __future__ import annotations

import dataclasses
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parlay.cli.flags import MOST_GPUS
from parlay.errors import UnknownNameError, UsageError, nearest

if TYPE_CHECKING:
    from parlay.frameworks.given import Imported
    from parlay.hardware.spec import Cluster
    from parlay.layouts.layout import Layout
    from parlay.layouts.workload import Workload
    from parlay.models.spec import ModelSpec

TABLES = (["training"], ["layout"], ["plan"], ["budget"])  # sections of fields: a whole one is laid over what is there
SECTIONS = ("model", "cluster", "gpus", "training", "layout", "plan", "budget", "gpu_hour_usd")


@dataclasses.dataclass(frozen=True)
class Question:
    """A question with everything resolved; `layout` and `budget` only where they were given."""

    model: ModelSpec
    cluster: Cluster
    gpus: int
    workload: Workload
    layout: Layout | None
    budget: dict[str, Any]
    gpu_hour_usd: float | None
    imported: Imported | None = None  # what --from read
    model_notes: tuple[str, ...] = ()  # what was assumed to read the model's config.json
    layout_notes: tuple[str, ...] = ()  # what stays of a file's layout beside --layout
    file_layout: dict[str, Any] | None = None  # what would; None where `typed` names no file that may hold a layout
    typed: tuple[str | None, str | None] = (None, None)  # words that stand for model and cluster on a command line
    layout_from: dict[str, str] = dataclasses.field(default_factory=dict)  # who set each field of `layout`, in words

    @property
    def model_has_experts(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return any(kind.mlp.kind == "moe" for kind in self.model.kinds.values())


def ask(
    model: str | None,
    *,
    on: str | None = None,
    gpus: int | None = None,
    layout: str | None = None,
    training: dict[str, Any] | None = None,
    layout_fields: dict[str, Any] | None = None,
    sets: list[str] | None = None,
    gpu_hour_usd: float | None = None,
    source: str | None = None,
    keep_layout: bool = True,
    options: bool = True,
) -> Question:
    """Return the question that flags, a run file named by `model`, and a framework's file `source` put together.

    `sets` win over flags, flags over the run file, and that over the framework's file, whose layout counts only if `keep_layout`.
    Without `options` the command has none for cluster and GPUs, so hints name what to write in the file.
    """
    table, where = _run_file(model)
    if not table and model is not None:
        table = {"model": model}
    imported = None
    if source is not None:
        from parlay.cli.framework_file import base_table

        base, imported = base_table(source, gpus, layout, keep_layout, table.get("model"))
        sections = {
            key: base.get(key, {}) | _section(table, key, where) for key in ("training", "layout") if key in {**base, **table}
        }
        table, where = base | table | sections, source
    for key, value in (("cluster", on), ("gpus", gpus), ("gpu_hour_usd", gpu_hour_usd)):
        if value is not None:
            table[key] = value
    table["training"] = _section(table, "training", where) | {k: v for k, v in (training or {}).items() if v is not None}
    chosen = _section(table, "layout", where)
    flags = {k: v for k, v in (layout_fields or {}).items() if v is not None}
    if "recompute" in flags:
        chosen.pop("recompute_layers", None)  # it belonged to the recompute that the flag replaces
    kept: dict[str, Any] = {}
    if layout is not None:
        kept, text = _kept(chosen), _layout_of(layout)
        chosen = kept | text
        kept = {k: v for k, v in kept.items() if k not in {**text, **flags}}
        if gpus is None:
            table.pop("gpus", None)  # the text tells
    if chosen or flags:
        table["layout"] = chosen | flags
    file = _file_layout(table, imported, where)
    typed = _typed(table, model, source, sets or [])
    before = _section(table, "layout", where)
    table = _with_sets(table, sets or [])
    if source is not None and imported is not None:
        from parlay.cli.framework_file import check_whole

        check_whole(table, source, gpus is None and keep_layout and layout is None, imported)
    found = _resolve(table, where, options=options)
    if found.layout is not None and keep_layout:
        _refuse_idle(found.layout, where, imported=imported is not None and layout is None)
    return dataclasses.replace(
        found, imported=imported, typed=typed, layout_notes=_kept_notes(kept, where, sets or []), file_layout=file,
        layout_from=_layout_from(found, before, _section(table, "layout", where)),
    )  # fmt: skip


def _layout_from(found: Question, before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    """Return who set each field of the layout, from the tables before and after --set; the framework sets the others."""
    told = {name: "run file" if before.get(name) == value else "--set" for name, value in after.items()}
    fields = found.layout.model_fields_set if found.layout else ()
    return {name: told.get(name, f"{found.workload.framework}'s default") for name in fields}


# Of a file's [layout], what a layout's short form replaces whole: degrees, and counts that make sense with them alone.
DEGREES = ("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "micro_batch", "ulysses", "shard", "first_layers", "last_layers")


def _kept(file: dict[str, Any]) -> dict[str, Any]:
    """Return what stays of a file's layout beside a short form, which tells the degrees: those it leaves out are 1.

    What it cannot tell, such as recompute, stays, and so does the ZeRO stage; 1f1b and interleaved follow from vpp.
    """
    usual = file.get("schedule") in ("1f1b", "interleaved")
    return {k: v for k, v in file.items() if k not in DEGREES and not (usual and k == "schedule")}


def _file_layout(table: dict[str, Any], imported: Imported | None, where: str) -> dict[str, Any] | None:
    """Return what would stay, beside --layout, of the layout in a framework's file or in a run file that holds its own model."""
    from parlay.layouts.layout import Layout
    from parlay.layouts.unless_told import in_its_words
    from parlay.specfile import validate

    if imported is None and not isinstance(table.get("model"), dict):
        return None
    kept = _kept({**(imported.table.get("layout", {}) if imported else {}), **_section(table, "layout", where)})
    kept = in_its_words(_section(table, "training", where).get("framework"), kept)
    checked = validate(Layout, kept, f"{where}: layout")
    return {name: getattr(checked, name) for name in kept}


def _kept_notes(kept: dict[str, Any], where: str, sets: list[str]) -> tuple[str, ...]:
    """Return a note on what stays of a file's layout and that --set does not change, where it says anything."""
    from parlay.layouts.layout import Layout

    usual = Layout.model_fields
    told = {text.partition("=")[0].strip().removeprefix("layout.") for text in sets}
    said = [
        f"{k}={_word(v)}"
        for k, v in kept.items()
        if k in usual and k not in told and (k, v) != ("sp", True) and v not in (usual[k].default, "none", [])
    ]
    return (f"--layout replaces the degrees of {where}; kept from it: {', '.join(said)}",) if said else ()


def _word(value: Any) -> str:
    """Return a value of a layout as --set takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _layout_of(text: str) -> dict[str, Any]:
    """Return the fields that a layout's short form sets."""
    from parlay.layouts.layout import parse_layout

    return parse_layout(text, where="--layout").model_dump(exclude_unset=True)


def _typed(table: dict[str, Any], model: str | None, source: str | None, sets: list[str]) -> tuple[str | None, str | None]:
    """Return what names the model and the cluster on a command line; a table of a run file has no such name.

    What --set changes of either stands behind its name.
    """
    changed = {
        name: "".join(f" --set {shlex.quote(text)}" for text in sets if text.strip().startswith(f"{name}."))
        for name in ("model", "cluster")
    }
    for text in sets:
        key, _, value = text.partition("=")
        if key.strip() in ("model", "cluster"):
            table = table | {key.strip(): value.strip().strip("'\"")}
    cluster = table["cluster"] if isinstance(table.get("cluster"), str) else None
    where = shlex.quote(cluster) + changed["cluster"] if cluster else None
    if source is not None:
        given = ([shlex.quote(model)] if model else []) + ["--from", shlex.quote(source)]
        return " ".join(given) + changed["model"], where
    named = table.get("model")
    return (shlex.quote(named) if isinstance(named, str) else model or "") + changed["model"] or None, where


def _run_file(name: str | None) -> tuple[dict[str, Any], str]:
    """Return the table of a run file (a TOML file with a model or cluster section), or an empty one."""
    from parlay.specfile import read_toml

    if not name or not name.endswith(".toml"):
        return {}, "command line"
    table = read_toml(Path(name))
    if "hidden" in table or "kinds" in table or "extends" in table:
        return {}, "command line"  # a model's own file
    for key in table:
        if key not in SECTIONS:
            near = nearest(key, SECTIONS)
            hint = f"did you mean {' or '.join(near)}?" if near else f"a run file holds {', '.join(SECTIONS)}"
            raise UsageError(f"unknown key '{key}'", where=f"{name}: {key}", hint=hint)
    if "model" not in table:
        raise UsageError("is missing", where=f"{name}: model", hint="name the model: model = 'llama-3.1-70b'")
    folder = Path(name).parent
    for key in ("model", "cluster"):
        value = table.get(key)
        if isinstance(value, str) and ("/" in value or value.endswith((".toml", ".json"))) and (folder / value).exists():
            table[key] = str(folder / value)
    return table, name


def _with_sets(table: dict[str, Any], sets: list[str]) -> dict[str, Any]:
    """Return the table with each `section.key=value` of --set laid over it; values are TOML, bare words are text, null unsets."""
    for text in sets:
        path, sign, value = text.partition("=")
        keys = [k.strip() for k in path.split(".")]
        if not sign or not all(keys):
            raise UsageError(f"'{text[:60]}' is not a setting", where="--set", hint="write --set training.seq_len=131072")
        if keys[0] not in SECTIONS:
            near = [f"{section}.{keys[0]}" for section in _sections_with(keys[0])] or nearest(keys[0], SECTIONS)
            hint = f"did you mean {' or '.join(near)}?" if near else f"sections: {', '.join(SECTIONS)}"
            raise UsageError(f"unknown section '{keys[0]}'", where=f"--set {text[:60]}", hint=hint)
        try:
            parsed = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            parsed = value.strip()
        level = table
        for key in keys[:-1]:
            inner = level.setdefault(key, {})
            if not isinstance(inner, dict):
                inner = {"extends": inner}
            level[key] = inner
            level = inner
        if keys in TABLES and parsed != "null":
            if not isinstance(parsed, dict):
                raise UsageError(f"'{text[:60]}' is not a setting", where="--set", hint="write --set training.seq_len=131072")
            before = level.get(keys[0], {})
            parsed = (before if isinstance(before, dict) else {}) | parsed
        if parsed == "null" or (parsed == "rule" and keys[-1] in ("first_layers", "last_layers")):
            _unset(level, keys, text)
        else:
            level[keys[-1]] = parsed
    return table


def _sections_with(key: str) -> list[str]:
    """Return the sections that have a key of this name."""
    from parlay.layouts.layout import Layout
    from parlay.layouts.workload import Workload

    return [name for name, kind in (("layout", Layout), ("training", Workload)) if key in kind.model_fields]


def _unset(level: dict[str, Any], keys: list[str], text: str) -> None:
    """Take back what a file says of a field, as if it were not there; of what a catalog says, null may stand in its place."""
    from parlay.layouts.layout import Layout
    from parlay.layouts.workload import Workload

    known = {"layout": set(Layout.model_fields), "training": {*Workload.model_fields, "global_tokens"}}.get(keys[0])
    if known is not None and len(keys) > 1 and keys[1] not in known:
        raise UnknownNameError("key", keys[1], known, where=f"--set {text[:60]}")
    if keys[0] in ("model", "cluster") and len(keys) > 1:
        level[keys[-1]] = None
    else:
        level.pop(keys[-1], None)


def _section(table: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    section = table.get(name, {})
    if not isinstance(section, dict):
        raise UsageError(
            f"expected a table, got {type(section).__name__}", where=f"{where}: {name}", hint=f"write a [{name}] section"
        )
    return dict(section)


def _resolve(table: dict[str, Any], where: str, *, options: bool = True) -> Question:
    from parlay.hardware.load import user_catalog_directory
    from parlay.layouts.layout import Layout
    from parlay.layouts.unless_told import in_its_words, unless_told
    from parlay.specfile import validate

    model, notes = _model(table.get("model"), where)
    if table.get("cluster") is None:
        how = "with --on dgx-h100" if options else 'in the file: cluster = "dgx-h100", above its sections'
        raise UsageError("no cluster given", where=where, hint=f"name one {how}; `parlay hardware list` shows all")
    cluster = _cluster(table["cluster"], where, user_catalog_directory())
    fields = _section(table, "layout", where)
    chosen = None
    workload = _workload(table["training"], where)
    if fields:
        fields = in_its_words(workload.framework, fields)
        fields = unless_told(workload, fields) | fields
        chosen = validate(Layout, fields, f"{where}: layout")
    gpus = table.get("gpus", chosen.gpus if chosen else None)
    if gpus is None:
        raise UsageError(
            "no GPU count given",
            where=where,
            hint="say how many with --gpus 64, or give a layout such as tp8.pp4.dp2"
            if options
            else "write gpus = 64, or a [layout]",
        )
    _whole(gpus, f"{where}: gpus", most=MOST_GPUS)
    limit = cluster.max_nodes.value * cluster.gpus_per_node.value if cluster.max_nodes else None
    if limit and gpus > limit:
        raise UsageError(f"{cluster.name} has {limit:,.0f} GPUs, not {gpus:,}", where="gpus")
    rate = table.get("gpu_hour_usd")
    check_price(rate, f"{where}: gpu_hour_usd")
    if rate is None and cluster.gpu_hour_usd is not None:
        rate = cluster.gpu_hour_usd.value
    return Question(model, cluster, gpus, workload, chosen, _section(table, "budget", where), rate, model_notes=notes)


def check_price(rate: Any, where: str) -> None:
    """Raise UsageError unless `rate` is a price of a GPU-hour, or None."""
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < 1e6):
        raise UsageError(f"a price per GPU-hour must be above 0 and below 1,000,000, got {rate!r}", where=where, hint="e.g. 2.5")


def _refuse_idle(layout: Layout, where: str, *, imported: bool) -> None:
    """Raise UsageError where a layout sets an inner degree that nothing would use; an imported one may: its job runs so."""
    if imported:
        return
    if layout.ulysses > 1 and layout.cp_kind != "usp":
        raise UsageError(
            f"ulysses={layout.ulysses} is the inner degree of usp, but cp_kind is {layout.cp_kind}", where=f"{where}: layout",
            hint="add --set layout.cp_kind=usp, with a cp that ulysses divides, or leave ulysses out",
        )  # fmt: skip
    if layout.ulysses > 1 and layout.cp == 1:
        raise UsageError(
            f"ulysses={layout.ulysses} splits context-parallel ranks, but cp is 1", where=f"{where}: layout",
            hint="raise cp to a multiple of ulysses, or leave ulysses out",
        )  # fmt: skip


def _model(given: Any, where: str) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the model, and what was assumed to read it."""
    from parlay.models.load import is_config, load_model, merge_over
    from parlay.models.spec import ModelSpec
    from parlay.specfile import validate

    if isinstance(given, dict):
        return validate(ModelSpec, merge_over(given), f"{where}: model"), ()
    if given is not None and not isinstance(given, str):
        raise UsageError(f"must be a name, a file or a table, got {str(given)[:40]}", where=f"{where}: model")
    if not given:
        raise UsageError(
            "no model given", where=where, hint="name one: parlay plan llama-3.1-70b ...; `parlay models list` shows all"
        )
    if is_config(given):
        from parlay.models.huggingface import import_config

        found = import_config(given)
        return found.spec, found.assumed
    return load_model(given), ()


def _cluster(given: Any, where: str, user: Path) -> Cluster:
    from parlay.hardware.load import cluster_of, load_cluster

    if isinstance(given, dict):
        return cluster_of(given, f"{where}: cluster", user)
    if not isinstance(given, str):
        raise UsageError(f"expected a name, a file or a table, got {type(given).__name__}", where=f"{where}: cluster")
    return load_cluster(given, user)


def workload_of(fields: dict[str, Any], sets: list[str] | None = None, *, listed: Mapping[str, str] | None = None) -> Workload:
    """Return the workload that flags and --set describe; what was not given (None) takes its default.

    For commands that ask of many models and clusters: `sets` change fields of training alone, but for those `listed` with the option
    that takes several values.
    """
    for text in sets or []:
        section, _, field = text.partition("=")[0].strip().partition(".")
        if section in SECTIONS and section != "training":
            raise UsageError(
                f"'{section}' cannot be set here, only fields of training", where=f"--set {text[:60]}",
                hint="give a model or cluster of your own as a file; layouts are searched",
            )  # fmt: skip
        option = (listed or {}).get(field.strip())
        if option:
            raise UsageError(f"{field.strip()} has an option of its own here", where=f"--set {text[:60]}", hint=f"use {option}")
    table = _with_sets({"training": {k: v for k, v in fields.items() if v is not None}}, sets or [])
    return _workload(table["training"], "command line")


OWN_MOMENTS = {"adamw-8bit": "8 bits", "adafactor": "fp32"}  # optimizers whose moments have a format of their own


def _workload(fields: dict[str, Any], where: str) -> Workload:
    """Return the workload; a batch may be given in tokens, counts with K, M, T, and tokens of the whole run likewise."""
    from parlay.layouts.workload import Workload
    from parlay.specfile import validate
    from parlay.units import parse_count

    fields = dict(fields)
    for key in ("seq_len", "global_batch", "total_tokens", "global_tokens"):
        if isinstance(fields.get(key), str):
            fields[key] = parse_count(fields[key], where=f"{where}: training.{key}")
    tokens = fields.pop("global_tokens", None)
    if tokens is not None:
        seq_len = fields.get("seq_len", Workload().seq_len)
        if "global_batch" in fields:
            raise UsageError("global_batch and global_tokens are both given", where=f"{where}: training", hint="give one of them")
        if isinstance(tokens, bool) or not isinstance(tokens, int) or not isinstance(seq_len, int) or tokens % max(seq_len, 1):
            least = tokens // seq_len * seq_len if isinstance(tokens, int) and isinstance(seq_len, int) and seq_len > 0 else 0
            near = f"choose {least:,} or {least + seq_len:,}" if least else "choose a multiple of the sequence length"
            raise UsageError(
                f"a global batch of {tokens} tokens is not a whole number of sequences of {seq_len} tokens",
                where=f"{where}: training.global_tokens",
                hint=f"{near}, or give global_batch in sequences",
            )
        fields["global_batch"] = tokens // seq_len
    workload = validate(Workload, fields, f"{where}: training")
    if workload.lora_rank is None and "lora_modules" in fields:
        raise UsageError(
            "lora_modules says where adapters stand, but there are none", where=f"{where}: training.lora_modules",
            hint="give their rank: --lora 16, or training.lora_rank; or leave lora_modules out",
        )  # fmt: skip
    kept = OWN_MOMENTS.get(workload.optimizer)
    if kept and workload.moment_dtype is not None:
        raise UsageError(
            f"{workload.optimizer} keeps its moments in {kept} alone, got {workload.moment_dtype}", where=f"{where}: training.moment_dtype",
            hint="leave moment_dtype out, take it back with --set training.moment_dtype=null, or choose --optimizer adamw",
        )  # fmt: skip
    return workload


def _whole(value: Any, where: str, *, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise UsageError(
            f"must be a whole number from 1 to {most:,}, got {str(value)[:40]}",
            where=where,
            hint="write a count above 0, such as 64",
        )
