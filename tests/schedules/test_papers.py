"""What the papers print: bubble rates and peak memory of the zero-bubble, DualPipe and Megatron interleaving papers."""

import numpy as np
import pytest

from parlay.schedules import Costs, build, simulate
from parlay.schedules.memory import held

# Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv:2401.10241): profiled forward, input gradient, weight gradient and
# transfer in ms with the bubble rates computed from them. Rows whose micro-batch count is the profiled one.
QI_2023 = [  # model, stages, micro-batches, T_F, T_B, T_W, T_comm, rates of 1F1B, ZB-H1, ZB-H2
    ("1.5B", 8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585, 0.1083),
    ("6.2B", 8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323, 0.0698),
    ("14.6B", 16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1397, 0.0672),
    ("28.3B", 32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1421, 0.0641),
]
LAST_DIGIT = 0.00005


@pytest.mark.parametrize(("name", "printed"), [("1f1b", 7), ("zb-h1", 8), ("zb-h2", 9)])
@pytest.mark.parametrize("row", QI_2023, ids=lambda r: r[0])
def test_reproduces_the_bubble_rates_of_qi_2023(row, name, printed):
    _, p, m, f, b, w, comm = row[:7]
    s = build(name, p, m)
    t = simulate(s, Costs.per_stage(s, f, b + w, w, comm))
    # Cost is the longest stage from its first operation to its last; 1F1B ends with a flush, where stage 0 is the longest.
    cost = float((t.gaps_s + t.busy_s).max())
    assert (cost - m * (f + b + w)) / cost == pytest.approx(row[printed], abs=LAST_DIGIT)


def test_table_of_qi_2023_peak_memory_in_micro_batches():
    p = 8
    assert held(build("1f1b", p, 4 * p)).peak.max() == p
    assert held(build("zb-h1", p, 4 * p)).peak.max() == p
    assert held(build("zb-h2", p, 4 * p)).peak.max() == 2 * p - 1


def test_qi_2024_zb_v_has_no_bubble_at_the_memory_of_1f1b():
    """arXiv:2405.15362: ZB-V holds p micro-batches on every stage, as the first stage of 1F1B, and waits for nothing."""
    for p in (2, 4, 8, 16):
        s = build("zb-v", p, 4 * p)
        assert (simulate(s, Costs.per_stage(s, 1, 2, 1)).gaps_s == 0).all()
        assert (held(s, 1 / 2).peak == p).all()


DUALPIPE_README = [  # method, bubble in units of (f, B, w, f&B) at PP = 8, activations; f, B, w = 1, 2, 1 and f&B = 3
    ("1f1b", (8 - 1) * (1 + 2), 8),
    ("zb-h1", (8 - 1) * (1 + 2 - 2 * 1), 8),
    ("dualpipe", (8 // 2 - 1) * (3 + 2 - 3 * 1), 8 + 1),
]


@pytest.mark.parametrize(("name", "bubble", "activations"), DUALPIPE_README)
def test_reproduces_the_table_of_deepseek_ai_dualpipe(name, bubble, activations):
    s = build(name, 8, 20)  # the README draws 8 ranks and 20 micro-batches
    t = simulate(s, Costs.per_stage(s, 1, 2, 1))
    assert (t.idle_s == bubble).all()
    assert held(s, weight_share=0).peak.max() == activations


def test_dualpipe_holds_the_weights_twice():
    s = build("dualpipe", 8, 20)
    assert [s.chunks_of(r) for r in range(8)] == [sorted({r, 7 - r}) for r in range(8)]
    assert s.chunks == 8  # of the model, each on two stages


def test_narayanan_2021_interleaving_divides_the_bubble_and_costs_memory():
    """arXiv:2104.04473 section 2.2: bubble share (p - 1)/m and (p - 1)/(m v) of the ideal time."""
    p, m, v = 4, 8, 2  # figure 4
    plain, fine = build("1f1b", p, m), build("interleaved", p, m, virtual=v)
    ideal = m * 3
    assert simulate(plain).idle_s[0] / ideal == (p - 1) / m
    assert simulate(fine, Costs.per_stage(fine, 1, 2)).idle_s[0] / ideal == (p - 1) / (m * v)


def test_interleaving_memory_of_korthikanti_2022():
    """arXiv:2205.05198 section 4.2.3: the first stage holds L(1 + (p - 1)/(p v)) layers' activations."""
    for p, v in [(4, 2), (8, 3), (8, 4)]:
        s = build("interleaved", p, 4 * p, virtual=v)
        layers = 1.0  # of the model; a chunk holds 1/(p v) of them
        assert held(s, layers / (p * v)).peak[0] == pytest.approx(layers * (1 + (p - 1) / (p * v)), rel=1e-12)


def test_pipedream_keeps_as_many_versions_as_the_worked_example_says():
    """Asynchronous 1F1B keeps up to K versions on the first stage, PipeDream-2BW two, synchronous 1F1B one."""
    from parlay.schedules.memory import versions

    K = 8
    assert versions(build("pipedream", K, 4 * K)).kept[0] == K
    assert (versions(build("pipedream-2bw", K, 4 * K)).kept == 2).all()
    assert (versions(build("1f1b", K, 4 * K)).kept == 1).all()


def test_pipedream_has_no_bubble_once_it_runs():
    s = build("pipedream", 4, 64)
    t = simulate(s)
    for r in range(4):
        here = s.operations(r)
        start, end = t.start_s[here], t.end_s[here]
        steady = slice(10, 110)
        assert np.array_equal(start[steady][1:], end[steady][:-1])
