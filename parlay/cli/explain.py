"""`parlay explain`: what a formula or a term of an estimate means, with its equation, its source and numbers put in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parlay.cli import flags, output

if TYPE_CHECKING:
    from parlay.formulas.registry import Formula, Parameter

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[TERM]", help="A formula such as pipeline.one_f_one_b_bubble_s, or a term such as step.bubble. None lists all."
    ),
]
Model = Annotated[
    str | None, typer.Argument(metavar="[MODEL]", help="With a model, cluster and layout: the term's numbers there.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Put a value into the formula, or set a field of the run. May be repeated."),
]
Layout = Annotated[str | None, typer.Option("--layout", metavar="LAYOUT", help="Such as tp8.pp4.dp2.")]

_DIMENSION = {"B": "bytes", "B/s": "bytes/s", "FLOP/s": "FLOP/s", "s": "s", "W": "W"}


def explain(
    term: Name = None,
    model: Model = None,
    on: flags.On = None,
    gpus: flags.Gpus = None,
    layout: Layout = None,
    zero: flags.Zero = None,
    recompute: flags.Recompute = None,
    seq_len: flags.SeqLen = None,
    global_batch: flags.GlobalBatch = None,
    global_tokens: flags.GlobalTokens = None,
    precision: flags.Precision = None,
    optimizer: flags.Optimizer = None,
    lora: flags.Lora = None,
    framework: flags.Framework = None,
    rates: flags.Rates = None,
    sets: Sets = None,
    json: flags.Json = False,
) -> None:
    """Explain a formula or a term of an estimate.

    A formula is shown with its equation, symbols, source and a worked example. With --set the formula is computed; with a model and a layout, a term of that estimate is explained.

    Example: parlay explain pipeline.one_f_one_b_bubble_s --set stages=8 --set forward_s=2ms --set backward_s=4ms

    Example: parlay explain step.exposed.tp llama-3.1-70b --on dgx-h100 --layout tp8.pp2.dp4
    """
    if model is not None and term is not None:
        training = flags.training(seq_len, global_batch, global_tokens, precision, optimizer, framework, None, lora)
        extra = flags.layout_fields(zero, recompute)
        fields = {"layout": layout, "training": training, "layout_fields": extra, "sets": sets}
        _term(term, model, on=on, gpus=gpus, fields=fields, rates=rates, json=json)
        return
    estimates = {
        "--on": on, "--gpus": gpus, "--layout": layout, "--zero": zero, "--recompute": recompute, "--seq-len": seq_len,
        "--global-batch": global_batch, "--global-tokens": global_tokens, "--precision": precision, "--optimizer": optimizer,
        "--framework": framework, "--rates": rates, "--lora": lora,
    }  # fmt: skip
    idle = [name for name, value in estimates.items() if value is not None]
    if term is None:
        _refuse_idle(
            [*idle, *(["--set"] if sets else [])], "the list of formulas takes no such option", "name a formula or a term"
        )
        from parlay.formulas.registry import formulas
        from parlay.report.explain import list_document, list_lines

        known = list(formulas().values())
        if json:
            output.say_json(list_document(known))
        else:
            output.say(list_lines(known, output.page()))
    else:
        _formula(term, sets or [], json, idle)


def _refuse_idle(given: list[str], why: str, hint: str) -> None:
    """Raise UsageError where options are given that nothing would use."""
    from parlay.errors import UsageError

    if given:
        raise UsageError(why, where=", ".join(given), hint=f"leave {'it' if len(given) == 1 else 'them'} out, or {hint}")


def _formula(name: str, sets: list[str], json: bool, idle: list[str]) -> None:
    from parlay.errors import UnknownNameError, UsageError
    from parlay.formulas.registry import find_formula
    from parlay.report.explain import formula_document, formula_lines

    try:
        formula = find_formula(name)
    except UnknownNameError as error:
        if name.split(".")[0] not in ("step", "memory", "hidden"):
            raise
        hint = f"say of which estimate: parlay explain {name} MODEL --on CLUSTER --layout tp8.pp2.dp4"
        raise UsageError("names a term of an estimate, not a formula", where=name, hint=hint) from error
    hint = f"give a value of the formula by --set NAME=VALUE: {', '.join(p.name for p in formula.parameters)}"
    _refuse_idle(idle, "a formula is of no estimate, and takes --set alone", hint)
    values = dict(_assignment(formula, text) for text in sets)
    result = _computed(formula, values) if sets else None
    if json:
        output.say_json(formula_document(formula, values, result))
    else:
        output.say(formula_lines(formula, output.page(), values, result))


def _assignment(formula: Formula, text: str) -> tuple[str, Any]:
    """Return the argument and the value of NAME=VALUE, in SI units."""
    from parlay.errors import UnknownNameError, UsageError

    name, sign, value = text.partition("=")
    if not sign:
        raise UsageError(f"'{text[:60]}' is not a setting", where="--set", hint="write --set stages=8")
    parameter = next((p for p in formula.parameters if p.name == name.strip()), None)
    if parameter is None:
        raise UnknownNameError("argument", name.strip(), [p.name for p in formula.parameters], where=f"--set {text[:60]}")
    return parameter.name, _value(parameter, value.strip(), where=f"--set {text[:60]}")


def _value(parameter: Parameter, text: str, where: str) -> Any:
    from parlay.units import parse_quantity

    several = text.startswith("[") and text.endswith("]")
    given = [x.strip() for x in text[1:-1].split(",") if x.strip()] if several else [text]
    values = [parse_quantity(x, _DIMENSION.get(parameter.unit, "count"), where=where, positive=False) for x in given]
    return values if several else values[0]


def _computed(formula: Formula, values: dict[str, Any]) -> Any:
    """Return the formula's result, or say which argument it still needs or which one is out of its domain."""
    from parlay.errors import UsageError
    from parlay.formulas._check import FormulaDomainError

    missing = [p.name for p in formula.parameters if p.default is None and p.name not in values]
    if missing:
        raise UsageError(f"needs {', '.join(missing)}", where=formula.name, hint=f"add --set {missing[0]}=VALUE")
    try:
        return formula.function(**values)
    except FormulaDomainError as error:
        raise UsageError(str(error), where=formula.name) from None
    except ValueError as error:  # lists that do not broadcast
        raise UsageError(str(error), where=formula.name, hint="lists must be equally long") from None


def _term(
    name: str,
    model: str,
    *,
    on: str | None,
    gpus: str | None,
    fields: dict[str, Any],
    rates: Path | None,
    json: bool,
) -> None:
    from parlay.cli.framework_file import say_notes
    from parlay.cli.question import ask
    from parlay.errors import UsageError

    q = ask(model, on=on, gpus=flags.gpu_count(gpus), **fields)
    say_notes(q)
    if q.layout is None:
        raise UsageError("no layout given", where="explain", hint="write one: --layout tp8.pp4.dp2")

    from parlay.cli.rates import rates_of
    from parlay.estimate.answers import find_term
    from parlay.estimate.estimate import estimate as price
    from parlay.report.explain import term_document, term_lines

    found = price(q.model, q.cluster, q.workload, q.layout, gpus=q.gpus, rates=rates_of(rates, q.cluster))
    term, whole = find_term(found, name)
    if json:
        output.say_json(term_document(found, term, whole))
    else:
        output.say(term_lines(found, term, whole, output.page()))


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("explain")(explain)
