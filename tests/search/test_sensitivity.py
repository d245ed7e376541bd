"""What would help, and what faster hardware brings; and a search that is stopped."""

import dataclasses
import io

import pytest

from parlay.cli.main import main
from parlay.cli.progress import ProgressBar, line
from parlay.estimate.estimate import estimate
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout
from parlay.layouts.rules import check
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.rates.choose import rates_for
from parlay.report.plan import plan_lines
from parlay.report.table import Page
from parlay.search import explore
from parlay.search import plan as module
from parlay.search.plan import plan
from parlay.search.sensitivity import GAIN, KINDS, LEAST, Faster, most_helpful, sensitivities, single_changes
from parlay.search.spaces import default_space, wide_space

H100 = load_cluster("dgx-h100")
RATES = rates_for(H100)
MODEL, WORK = load_model("llama-3.1-8b"), Workload(seq_len=8192, global_batch=128)


def test_everything_faster_is_the_step_faster_but_for_launches_and_the_host():
    e = estimate(MODEL, H100, WORK, Layout(tp=2, pp=2, dp=4, micro_batch=1), rates=RATES)
    all_faster = estimate(MODEL, H100, WORK, e.layout, rates=Faster(RATES, 2.0, 2.0, 2.0, 2.0)).step_s
    assert all_faster == pytest.approx(e.step_s / 2, rel=0.02)
    assert estimate(MODEL, H100, WORK, e.layout, rates=Faster(RATES)).step_s == e.step_s


@pytest.mark.parametrize("layout", [Layout(tp=8, dp=2), Layout(dp=16), Layout(pp=4, dp=4, vpp=2), Layout(cp=4, tp=2, dp=2)])
def test_gains_add_up_to_at_most_all_and_none_is_negative(layout):
    e = estimate(MODEL, H100, WORK, layout, rates=RATES)
    found = {s.what: s.gain for s in sensitivities(e, RATES)}
    assert set(found) == set(KINDS)
    assert all(g >= -1e-12 for g in found.values())  # rounding
    assert sum(found.values()) <= (1 - 1 / (1 + GAIN)) * 1.02
    assert found["FLOP/s"] == max(found.values())


def test_a_layout_in_one_domain_gains_nothing_from_the_network():
    inside = estimate(MODEL, H100, WORK, Layout(tp=4, dp=2), rates=RATES)
    found = {s.what: s.gain for s in sensitivities(inside, RATES)}
    assert found["network"] == 0
    assert found["scale-up link"] > 0


def test_a_needless_recompute_is_found():
    e = estimate(MODEL, H100, WORK, Layout(tp=4, dp=4, recompute=("full",)), rates=RATES)
    change = most_helpful(e, RATES)
    better = estimate(MODEL, H100, WORK, change.layout, rates=RATES)
    assert better.fits
    assert change.over_bytes == 0
    assert change.gain == pytest.approx(1 - better.step_s / e.step_s)
    assert change.gain > 0.1


def test_the_change_is_the_best_of_all_that_are_valid():
    e = estimate(MODEL, H100, WORK, Layout(tp=8, pp=2, dp=1, tp_overlap=True), rates=RATES)
    change = most_helpful(e, RATES)
    valid = [x for _, x in single_changes(e.layout, MODEL.layer_count) if not check(x, MODEL, H100, WORK, 16)]
    priced = [estimate(MODEL, H100, WORK, x, rates=RATES) for x in valid]
    best = min(p.step_s for p in priced if p.fits)
    assert change.gain == pytest.approx(1 - best / e.step_s, abs=0.01)
    assert len(valid) > 5


def test_headroom_turns_a_change_down():
    e = estimate(MODEL, H100, WORK, Layout(tp=4, dp=4, recompute=("full",)), rates=RATES)
    free = most_helpful(e, RATES)
    room = e.memory_limit_bytes - estimate(MODEL, H100, WORK, free.layout, rates=RATES).peak_bytes
    tight = most_helpful(e, RATES, headroom_bytes=room + 1e9)
    assert tight is None or tight.layout != free.layout


def test_changes_keep_the_gpus():
    layout = Layout(tp=4, cp=2, pp=2, dp=2, ep=2, micro_batch=2, recompute=("full",))
    for words, x in single_changes(layout, 32):
        assert x.gpus == layout.gpus
        assert x != layout
        assert words


def test_rows_are_explained_only_where_asked():
    plain = plan(MODEL, H100, WORK, 16, top=2)
    told = plan(MODEL, H100, WORK, 16, top=2, explain=True)
    assert [r.estimate.layout for r in plain.rows] == [r.estimate.layout for r in told.rows]
    assert all(r.help is None for r in plain.rows)
    assert plain.sensitivities == ()
    assert all(r.help is None or r.help.gain > LEAST for r in told.rows)
    text = "\n".join(plan_lines(told, Page(), pareto=True))
    assert text.count("would help: ") == 2
    assert "10% more of each would save" in text
    assert text.count("Less memory costs time") == 1
    assert "would help" not in "\n".join(plan_lines(plain, Page()))


@pytest.fixture
def stopping(monkeypatch):
    """Let the search price chunks of a few hundred layouts and be interrupted in the third."""

    def stop_after(chunks):
        real, seen = module.price_memory, []

        def interrupted(*given, **more):
            seen.append(1)
            if len(seen) > chunks:
                raise KeyboardInterrupt
            return real(*given, **more)

        original = explore.layouts_of
        monkeypatch.setattr(module, "price_memory", interrupted)
        monkeypatch.setattr(explore, "layouts_of", lambda q, s, c: original(q, s, c, chunk=300))

    return stop_after


def test_an_interrupted_search_says_so_and_gives_its_best(stopping):
    stopping(2)
    told = []
    found = plan(MODEL, H100, WORK, 64, progress=lambda *x: told.append(x))
    assert found.interrupted
    assert found.rows
    assert 0 < found.priced == told[-1][0]
    assert found.considered == sum(found.rejected.values()) + found.fitting + (
        found.considered - sum(found.rejected.values()) - found.fitting
    )
    assert [x[2] for x in told] == sorted(x[2] for x in told)
    assert "Interrupted: the best of the" in "\n".join(plan_lines(found, Page()))


def test_nothing_yet_is_an_interrupt(stopping):
    stopping(0)
    with pytest.raises(KeyboardInterrupt):
        plan(MODEL, H100, WORK, 64)


def test_the_command_ends_with_130_and_the_best_so_far(stopping, capsys):
    stopping(2)
    assert main(["plan", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "64"]) == 130
    said = capsys.readouterr()
    assert "Interrupted: the best of the" in said.out
    assert said.err == "interrupted\n"


def test_headroom_is_kept_and_shown():
    space = default_space(WORK)
    asked = dataclasses.replace(space.asked, headroom_bytes=30e9)
    found = plan(MODEL, H100, WORK, 16, top=3, space=space.open(asked))
    limit = H100.device.memory.allocatable.value
    assert all(r.estimate.peak_bytes <= limit - 30e9 for r in found.rows)
    assert found.memory_limit_bytes == limit - 30e9
    assert "27.9 GiB kept free" in "\n".join(plan_lines(found, Page()))
    none = plan(MODEL, H100, WORK, 16, space=space.open(dataclasses.replace(asked, headroom_bytes=84e9)), levers=False)
    assert none.rows == ()
    assert none.nearest_miss.over_bytes == pytest.approx(none.nearest_miss.peak_bytes - (limit - 84e9))


@pytest.mark.parametrize("width", [40, 60, 79, 80, 120])
def test_the_bar_never_wraps(width):
    """A line as wide as the terminal wraps and leaves its start behind; what was priced and how far it is stay to be read."""
    for priced, best, share in ((1, None, 0.0), (123_456_789, 12.34, 0.5), (99_999_999, 1234.5, 1.0)):
        text = line(priced, best, share, width - 1)
        assert len(text) < width
        assert f"{share:4.0%}" in text
        assert width < 60 or f"{priced:,} layouts, " in text
    assert "Ctrl-C" in line(123_456, 1.5, 0.5, 119)


def test_the_bar_counts_the_second_pass_of_a_wide_search():
    """Rows that save memory are tried after all others: the bar stood at 100 % for as long as that took."""
    shares = []
    space = dataclasses.replace(wide_space(WORK), micro_batch=(1, 2))
    plan(MODEL, H100, WORK, 16, space=space, levers=False, progress=lambda priced, best, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    first = [s for s in shares if s <= 0.5]
    assert first
    assert len(shares) > len(first)
    assert 0.5 in first


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "waited", "drawn"), [(Terminal(), 1.5, True), (Terminal(), 0.5, False), (io.StringIO(), 9.0, False)]
)
def test_a_bar_only_on_a_terminal_and_after_a_second(monkeypatch, stream, waited, drawn):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("sys.stderr", stream)
    bar = ProgressBar()
    clock[0] = waited
    bar(1000, 1.5, 0.25)
    bar(2000, None, 0.30)
    bar.close()
    text = stream.getvalue()
    assert ("1,000 layouts" in text) == drawn
    assert "2,000" not in text  # too soon after the first
    assert text == "" or text.endswith("\r")
