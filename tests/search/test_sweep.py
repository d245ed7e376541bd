"""Sweeps: each row is the plan of its own question, scaling follows its name, and the knee its rule."""

import csv
import dataclasses
import json

import pytest

from parlay.cli.main import main
from parlay.hardware.load import load_cluster
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.report.sweep import sweep_csv, sweep_jsonl, sweep_lines, sweep_report
from parlay.report.table import Page
from parlay.search import sweep as module
from parlay.search.constraints import Constraints, parse_bound
from parlay.search.plan import plan
from parlay.search.spaces import default_space
from parlay.search.sweep import KNEE, Case, SweepRow, cases, sweep, why_nothing
from parlay.units import show_usd

H100, A100 = load_cluster("dgx-h100"), load_cluster("dgx-a100")
SMALL, LARGE = load_model("llama-3.2-1b"), load_model("llama-3.1-8b")
WORK = Workload(total_tokens=10**11)


@pytest.fixture(scope="module")
def found():
    return sweep(cases([LARGE], [H100, A100], [64, 1, 8], WORK, [4096], [64]))


def test_every_row_is_the_plan_of_its_own_question(found):
    assert [(r.case.cluster.id, r.case.gpus) for r in found.rows] == [
        (c, n) for c in ("dgx-h100", "dgx-a100") for n in (1, 8, 64)
    ]
    for row in found.rows:
        case = row.case
        one = plan(case.model, case.cluster, case.workload, case.gpus, top=1)
        if row.estimate is None:
            assert one.rows == ()
            assert row.why == why_nothing(one)
            assert str(one.nearest_miss.layout) in row.why
            assert f"{one.priced:,} layouts" in row.why
            assert "too much" in row.why
            assert row.days is None
        else:
            assert row.estimate.layout == one.rows[0].estimate.layout
            assert row.days == pytest.approx(1e11 / (row.estimate.tokens_per_s_per_gpu * case.gpus) / 86400)


def test_strong_scaling_keeps_the_batch_and_weak_grows_it():
    strong = cases([SMALL], [H100], [8, 16, 64], WORK, [2048, 4096], [128])
    weak = cases([SMALL], [H100], [8, 16, 64], WORK, [2048, 4096], [128], weak=True)
    assert [c.workload.global_batch for c in strong] == [128] * 6
    assert [c.workload.global_batch for c in weak] == [128, 256, 1024] * 2
    assert [c.workload.seq_len for c in weak] == [2048] * 3 + [4096] * 3
    assert all(c.workload.total_tokens == 10**11 for c in strong)


def row_of(gpus, speed, estimate):
    case = Case(SMALL, H100, gpus, WORK)
    return SweepRow(case, dataclasses.replace(estimate, tokens_per_s_per_gpu=speed) if speed else None, "")


@pytest.mark.parametrize(
    ("speeds", "knee"),
    [
        ([100, 99, 95, 89, 50], 2),
        ([100, 91, 89, 50], 1),
        ([100, 90, 50], 1),  # exactly 90 % still counts
        ([80, 100, 95, 70], 2),
        ([100, 80, 95, 70], 2),  # the last one that holds it, dips or not
        ([100, 99, 98], None),  # nothing was seen beyond
        ([None, 100, 50], 1),
        ([100, None], 0),
        ([None, None], None),
        ([100], None),
    ],
)
def test_the_knee_is_the_last_point_with_nine_tenths_of_the_best(found, speeds, knee):
    estimate = next(r.estimate for r in found.rows if r.estimate)
    rows = module._with_knees([row_of(2**i, s, estimate) for i, s in enumerate(speeds)])
    if speeds == [100, None]:
        knee = None  # one fitting row is no series
    assert [i for i, r in enumerate(rows) if r.knee] == ([] if knee is None else [knee])


def test_a_series_without_a_knee_beside_one_with_it_is_accounted_for(found):
    estimate = next(r.estimate for r in found.rows if r.estimate)
    bent, flat = [row_of(8, 100, estimate), row_of(16, 50, estimate)], [row_of(8, 100, estimate), row_of(16, 99, estimate)]
    text = " ".join(sweep_lines(module.Sweep(module._with_knees([*bent, *flat]), weak=False, interrupted=False), Page(100)))
    assert "a series that ends above it has none" in text
    assert "a series that ends" not in " ".join(sweep_lines(module.Sweep(tuple(flat), weak=False, interrupted=False), Page(100)))


def test_series_do_not_mix(found):
    estimate = next(r.estimate for r in found.rows if r.estimate)
    series = [row_of(8, 100, estimate), row_of(16, 50, estimate)]
    rows = module._with_knees([*series, *series])
    assert [r.knee for r in rows] == [True, False, True, False]
    assert KNEE == 0.90


def test_bounds_hold_in_every_row():
    asked = Constraints((parse_bound("tp=2"), parse_bound("zero>=2")))
    found = sweep(cases([SMALL], [H100], [4, 8], WORK, [4096], [64]), constraints=asked)
    assert all(r.estimate.layout.tp == 2 and r.estimate.layout.zero >= 2 for r in found.rows)


def test_an_interrupt_keeps_the_rows_so_far(monkeypatch):
    asked = cases([SMALL], [H100], [1, 2, 4], WORK, [4096], [64])

    def stopping(model, cluster, workload, gpus, **more):
        if gpus == 4:
            raise KeyboardInterrupt
        return plan(model, cluster, workload, gpus, top=1, space=default_space(workload))

    monkeypatch.setattr(module, "plan", stopping)
    found = sweep(asked)
    assert found.interrupted
    assert [r.case.gpus for r in found.rows] == [1, 2]
    assert any("Interrupted" in line for line in sweep_lines(found, Page()))
    with pytest.raises(KeyboardInterrupt):
        sweep(asked[2:])


def test_all_forms_say_the_same(found):
    document = sweep_report(found).model_dump()
    lines = [json.loads(line) for line in sweep_jsonl(found)]
    table = list(csv.DictReader(sweep_csv(found)))
    assert document["rows"] == lines
    assert [int(r["gpus"]) for r in table] == [r["gpus"] for r in lines]
    for text, value in zip(table, lines, strict=True):
        assert text["step_s"] == ("" if value["step_s"] is None else str(value["step_s"]))
    assert "nothing fits" in "\n".join(sweep_lines(found, Page()))
    assert max(len(line) for line in sweep_lines(found, Page(80))) <= 80


def test_the_command(capsys):
    arguments = ["sweep", "llama-3.2-1b", "--on", "dgx-h100", "--gpus", "4,8", "--global-batch", "64"]
    assert main(arguments) == 0
    assert "strong scaling" in capsys.readouterr().out
    timed = [*arguments, "--tokens", "1B", "--days"]
    assert main([*timed, "30"]) == 0
    assert "that train 1.00B tokens within 30" in capsys.readouterr().out
    assert main([*timed, "0.001"]) == 1
    assert "None of these trains 1.00B tokens within" in capsys.readouterr().out
    for asked, words in (([*timed, "0"], "above 0"), ([*timed, "nan"], "above 0"), ([*arguments, "--days", "3"], "add --tokens")):
        assert main(asked) == 2
        assert words in capsys.readouterr().err
    assert main([*arguments, "--weak", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [r["global_batch_sequences"] for r in document["rows"]] == [64, 128]
    assert main([*arguments, "--csv", "--jsonl"]) == 2
    assert main(["sweep", "llama-3.1-405b", "--on", "dgx-h100", "--gpus", "1"]) == 1
    assert main(["sweep", "llama-3.2-1b", "--on", "dgx-h100", "--gpus", "4,,8"]) == 2
    values = ",".join(str(n) for n in range(1, 60))
    assert main(["sweep", "llama-3.2-1b", "--on", "dgx-h100", "--gpus", values, "--global-batch", values]) == 2
    assert "combinations" in capsys.readouterr().err


def test_where_rules_reject_everything_the_reason_names_them():
    found = plan(load_model("llama-3.1-8b"), load_cluster("dgx-h100"), Workload(global_batch=1), 37, top=1, levers=False)
    assert found.priced == 0
    said = why_nothing(found)
    first = max(found.rejected, key=found.rejected.get)
    assert f"none of {found.considered:,} layouts keeps the rules: {first} rejects" in said
    assert found.reasons[first] in said


def test_a_cluster_without_the_precision_has_rows_that_say_so(capsys):
    asked = [
        "sweep",
        "llama-3.2-1b",
        "--on",
        "dgx-h100,jean-zay-v100",
        "--gpus",
        "4,8",
        "--precision",
        "fp8",
        "--global-batch",
        "64",
    ]
    why = "so it cannot train in fp8"
    assert main(asked) == 0
    text = capsys.readouterr().out
    assert " no fp8 " in text
    assert text.count(why) == 2
    assert main([*asked, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(r["cluster"], r["fits"], why in r["why"]) for r in rows] == [
        ("dgx-h100", True, False), ("dgx-h100", True, False), ("jean-zay-v100", False, True), ("jean-zay-v100", False, True),
    ]  # fmt: skip
    assert main([*asked, "--csv"]) == 0
    assert capsys.readouterr().out.count(why) == 2
    assert main(["sweep", "llama-3.2-1b", "--on", "jean-zay-v100,dgx-a100", "--gpus", "8", "--precision", "fp8"]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(("days", "marked"), [(1000.0, [8, 8]), (12.0, [64, 64]), (3.0, [64, None]), (0.1, [None, None])])
def test_the_fewest_gpus_of_each_series_that_end_in_time_are_marked(found, days, marked):
    """100B tokens on 8 and 64 GPUs take about 14 and 2 days of H100s, 34 and 5 of A100s; one GPU holds nothing."""
    again = dataclasses.replace(found, rows=module._with_fewest(found.rows, days), within_days=days)
    for cluster, gpus in zip(("dgx-h100", "dgx-a100"), marked, strict=True):
        rows = [r for r in again.rows if r.case.cluster.id == cluster]
        in_time = [r.case.gpus for r in rows if r.days is not None and r.days <= days]
        assert [r.case.gpus for r in rows if again.in_time(r)] == in_time
        assert [r.case.gpus for r in rows if r.fewest] == ([] if gpus is None else [gpus]) == in_time[:1]
    assert all(found.in_time(r) is None and not r.fewest for r in found.rows)


def test_a_run_costs_gpu_hours_at_the_price_asked_or_the_clusters_own(found):
    row = next(r for r in found.rows if r.estimate)
    hours = 1e11 / row.estimate.tokens_per_s_per_gpu / 3600
    assert row.run().gpu_hours == pytest.approx(hours)
    assert row.run().cost_usd == pytest.approx(hours * H100.gpu_hour_usd.value)
    assert row.run(2.0).cost_usd == pytest.approx(hours * 2)
    own = dataclasses.replace(found, gpu_hour_usd=2.0)
    document = sweep_report(own).rows[found.rows.index(row)]
    assert (document.gpu_hours, document.cost_usd) == pytest.approx((hours, 2 * hours))
    assert f"cost: {show_usd(2.0)} a GPU-hour." in "\n".join(sweep_lines(own, Page(200)))


def test_what_tells_rows_apart_stays_at_80_columns(found):
    """Lengths and batches that are swept are shown before speeds are; alone they go before the seconds of a step."""
    both = cases([LARGE], [H100], [8, 64], WORK, [4096, 8192], [64, 128])
    rows = tuple(SweepRow(c, dataclasses.replace(found.rows[1].estimate, workload=c.workload), "") for c in both)
    told = sweep_lines(dataclasses.replace(found, rows=rows, gpu_hour_usd=2.5), Page(80))
    assert max(map(len, told)) <= 80
    header = next(line for line in told if "layout" in line)
    assert all(word in header for word in ("GPUs", "tokens", "batch"))
    narrow = sweep_lines(dataclasses.replace(found, rows=rows[:2], gpu_hour_usd=2.5), Page(64))
    assert max(map(len, narrow)) <= 64
    header = next(line for line in narrow if "layout" in line)
    assert "tokens" not in header
    assert "step s" in header
