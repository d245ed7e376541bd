"""Experts spread over ranks: the same outputs and gradients as on one, the rows and bytes of the closed forms, drops and skew."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import activations_moe, flops, parameters, serving
from parlay.formulas import experts as formulas
from parlay.formulas import routing as routing_formulas
from parlay.simulate import experts, routing, tape
from parlay.simulate.world import World

few = settings(max_examples=25, deadline=None)


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12 * max(1.0, np.abs(other).max(initial=0)))


def make_expert(rng, h, m, gated):
    return experts.Expert(
        rng.standard_normal((h, m)), rng.standard_normal((m, h)), rng.standard_normal((h, m)) if gated else None
    )


def silu(x):
    return x * (x.apply(lambda u: 1 + np.exp(-u), lambda u: -np.exp(-u))).power(-1)


def on_one_rank(x, gates, kept, chosen, layer):
    """Every expert runs on every token; the gates, zero for all experts that a token does not visit, pick what counts."""
    start, gate = tape.Value(x), tape.Value(gates)
    where = np.zeros((len(x), chosen.shape[1], len(layer.experts)))
    np.put_along_axis(where, chosen[:, :, None], kept[:, :, None].astype(float), axis=2)
    dense = (gate.reshape(len(x), 1, chosen.shape[1]) @ tape.Value(where)).reshape(len(x), len(layer.experts)).swap(0, 1)
    total, leaves = tape.Value(np.zeros_like(x)), []
    for e, expert in enumerate(layer.experts + ([layer.shared] if layer.shared else [])):
        leaf = {name: tape.Value(getattr(expert, name)) for name in ("up", "down", "gate") if getattr(expert, name) is not None}
        up = start @ leaf["up"]
        inner = silu(start @ leaf["gate"]) * up if "gate" in leaf else silu(up)
        out = inner @ leaf["down"]
        total = total + (out * dense.take([e]).swap(0, 1) if e < len(layer.experts) else out)
        leaves.append(leaf)
    return start, gate, leaves, total


def check_gradients(mine, leaf):
    for name, value in leaf.items():
        close(getattr(mine, name), value.gradient)


@few
@given(
    seed=st.integers(0, 1000),
    N=st.integers(1, 4),
    E=st.integers(1, 6),
    tokens=st.lists(st.integers(0, 6), min_size=4, max_size=4),
    h=st.integers(1, 4),
    m=st.integers(1, 4),
    gated=st.booleans(),
    shared=st.booleans(),
    factor=st.sampled_from([None, 0.5, 1.0, 1.5]),
    skew=st.sampled_from([0.0, 1.0, 3.0]),
    data=st.data(),
)
def test_same_numbers_for_any_sizes(seed, N, E, tokens, h, m, gated, shared, factor, skew, data):
    rng, k = np.random.default_rng(seed), data.draw(st.integers(1, E))
    layer = experts.Layer([make_expert(rng, h, m, gated) for _ in range(E)], make_expert(rng, h, m, gated) if shared else None)
    x, d_out = ([rng.standard_normal((T, h)) for T in tokens[:N]] for _ in range(2))
    routes = []
    for T in tokens[:N]:
        logits = routing.skewed_logits(T, E, skew, rng)
        limit = None if factor is None else routing.capacity_rows(T, k, E, factor)
        routes.append(routing.route(logits, routing.top_experts(logits, k), capacity=limit))
    world = World(N)
    saved = experts.forward(world, x, layer, routes)
    gradients = experts.backward(world, x, layer, routes, saved, d_out)

    gates, kept, chosen = (np.concatenate([getattr(each, name) for each in routes]) for name in ("gates", "kept", "experts"))
    start, gate, leaves, right = on_one_rank(np.concatenate(x), gates, kept, chosen, layer)
    right.backward(np.concatenate(d_out))
    close(np.concatenate(saved.outputs), right.array)
    close(np.concatenate(gradients.tokens), start.gradient)
    close(np.concatenate(gradients.gates), gate.gradient)
    for mine, leaf in zip(gradients.experts, leaves):
        check_gradients(mine, leaf)
    if shared:
        check_gradients(gradients.shared, leaves[-1])

    matrices = 3 if gated else 2
    held = sum(value.array.size for leaf in leaves[:E] for value in leaf.values())
    assert held == parameters.expert_parameters(h, m, E, matrices)
    kept_pairs = int(sum(each.kept.sum() for each in routes))
    one = flops.matmul_flops(1, 1, parameters.mlp_parameters(h, m, matrices))
    assert world.ledger.flops_done(experts.EXPERTS).sum() == kept_pairs * one
    assert world.ledger.flops_done(experts.EXPERTS_BACKWARD).sum() == 2 * kept_pairs * one
    owner = np.repeat(np.arange(N), [len(layer.owned_by(j, N)) for j in range(N)])
    far = [int((each.kept & (owner[each.experts] != i)).sum()) * h * 8 for i, each in enumerate(routes)]
    assert world.ledger.sent_bytes(experts.DISPATCH).tolist() == far
    assert world.ledger.sent_bytes(experts.BACK_DISPATCH).tolist() == far
    for name in (experts.COMBINE, experts.BACK_COMBINE):
        assert world.ledger.received_bytes(name).tolist() == far


@few
@given(
    N=st.integers(1, 4),
    each=st.integers(1, 3),
    T=st.integers(1, 8),
    h=st.integers(1, 4),
    factor=st.sampled_from([0.5, 1.0, 1.25, 2.0]),
    data=st.data(),
)
def test_padded_to_capacity_every_rank_does_the_same(N, each, T, h, factor, data):
    E, m, rng = N * each, 3, np.random.default_rng(0)
    k = data.draw(st.integers(1, E))
    layer = experts.Layer([make_expert(rng, h, m, True) for _ in range(E)])
    x, limit = [rng.standard_normal((T, h)) for _ in range(N)], routing.capacity_rows(T, k, E, factor)
    logits = [routing.skewed_logits(T, E, 1.0, rng) for _ in range(N)]
    routes = [routing.route(each, routing.top_experts(each, k), capacity=limit) for each in logits]
    world, other = World(N), World(N)
    padded, plain = experts.forward(world, x, layer, routes, pad_to=limit), experts.forward(other, x, layer, routes)
    d_out = [rng.standard_normal((T, h)) for _ in range(N)]
    back = experts.backward(world, x, layer, routes, padded, d_out, pad_to=limit)
    plain_back = experts.backward(other, x, layer, routes, plain, d_out)
    for one, two in ((padded.outputs, plain.outputs), (back.tokens, plain_back.tokens)):
        close(np.concatenate(one), np.concatenate(two))
    assert limit == formulas.expert_capacity(factor, k, T, E)
    rows = activations_moe.expert_rows(T, k, experts=E, capacity_factor=factor)
    owned = [sum(part.nbytes for e in layer.owned_by(j, N) for part in padded.rows[e]) for j in range(N)]
    assert owned == [activations_moe.expert_input(rows, h, element_bytes=8, probability_bytes=0)] * N
    # Bytes over FLOPs: the ratio of the two times at one FLOP and one byte a second.
    sent, work = world.ledger.sent_bytes(experts.DISPATCH, experts.COMBINE), world.ledger.flops_done(experts.EXPERTS)
    assert (sent / work).tolist() == pytest.approx([formulas.exchange_to_compute(N, m, 1, 1, 3, 8)] * N)
    assert (
        world.ledger.flops_done(experts.EXPERTS).tolist()
        == [rows * flops.matmul_flops(1, 1, parameters.mlp_parameters(h, m))] * N
    )
    for name in (experts.DISPATCH, experts.COMBINE, experts.BACK_DISPATCH, experts.BACK_COMBINE):
        assert (N * world.ledger.sent_bytes(name) == rows * h * 8 * (N - 1)).all()


@pytest.mark.parametrize(("N", "E", "k", "T"), [(8, 64, 2, 300), (4, 8, 2, 500), (3, 9, 4, 400), (8, 8, 1, 700)])
def test_uniform_routing_sends_the_expected_bytes(N, E, k, T):
    h, rng = 2, np.random.default_rng(N + E)
    layer = experts.Layer([make_expert(rng, h, 1, False) for _ in range(E)])
    logits = [routing.skewed_logits(T, E, 0.0, rng) for _ in range(N)]
    routes, world = [routing.route(each, routing.top_experts(each, k)) for each in logits], World(N)
    experts.forward(world, [rng.standard_normal((T, h)) for _ in range(N)], layer, routes)
    share = (N - 1) / N
    expected = formulas.exchange_sent_bytes(N, k, T, h, 8, 8)
    assert expected == pytest.approx(2 * formulas.dispatch_sent_bytes(N, k, T, h, 8))
    # k experts of E without replacement, E / N of them at home: the far ones of a token are hypergeometric.
    spread = 2 * h * 8 * np.sqrt(T * k * share * (1 - share) * (E - k) / max(E - 1, 1))
    both = world.ledger.sent_bytes(experts.DISPATCH) + world.ledger.received_bytes(experts.COMBINE)
    assert abs(both.mean() - expected) <= 3 * spread / np.sqrt(N)
    # Nothing is dropped: the experts' FLOPs are exact in all, whatever the draw.
    assert world.ledger.flops_done(experts.EXPERTS).sum() == N * formulas.expert_flops(k, T, h, 1, 2)
    load = sum(each.load(E) for each in routes)
    assert load.mean() == serving.tokens_per_expert(N * T, k, E)
    assert [len(layer.owned_by(j, N)) for j in range(N)] == [formulas.experts_per_rank(E, N)] * N


@few
@given(
    seed=st.integers(0, 1000),
    nodes=st.integers(1, 3),
    size=st.integers(1, 3),
    each=st.integers(1, 2),
    T=st.integers(0, 7),
    data=st.data(),
)
def test_through_one_rank_a_node(seed, nodes, size, each, T, data):
    N, h, rng = nodes * size, 3, np.random.default_rng(seed)
    E = N * each
    most = data.draw(st.integers(1, nodes))
    k = data.draw(st.integers(1, min(5, most * size * each)))
    layer = experts.Layer([make_expert(rng, h, 2, True) for _ in range(E)], make_expert(rng, h, 2, True))
    x = [rng.standard_normal((T, h)) for _ in range(N)]
    logits = [rng.standard_normal((T, E)) for _ in range(N)]
    routes = [routing.route(each, routing.top_experts_of_nodes(each, k, nodes, most)) for each in logits]
    world, plain = World(N, ranks_per_node=size), World(N)
    close(
        np.concatenate(experts.forward_by_node(world, x, layer, routes)),
        np.concatenate(experts.forward(plain, x, layer, routes).outputs),
    )
    assert world.ledger.flops_done(experts.EXPERTS).tolist() == plain.ledger.flops_done(experts.EXPERTS).tolist()
    for i, each_route in enumerate(routes):
        visited = np.zeros((T, nodes), bool)
        np.put_along_axis(visited, each_route.experts // (size * each), True, axis=1)
        assert visited.sum(1).max(initial=0) <= most
        crossing = np.delete(visited, i // size, axis=1).sum() * h * 8
        assert world.between_nodes_bytes(experts.DISPATCH)[i] == crossing
    assert np.array_equal(world.ledger.traffic_bytes(experts.DISPATCH), world.ledger.traffic_bytes(experts.COMBINE).T)


@pytest.mark.parametrize(("nodes", "size", "each", "k", "most"), [(4, 2, 4, 4, 2), (3, 2, 2, 3, 3), (8, 1, 8, 6, 4)])
def test_nodes_that_a_token_reaches(nodes, size, each, k, most):
    """The formula draws the kept nodes; a router that keeps the nodes of the best experts reaches more of them."""
    N, T, h, rng = nodes * size, 300, 1, np.random.default_rng(5)
    E = N * each
    layer, world = experts.Layer([make_expert(rng, h, 1, False) for _ in range(E)]), World(N, ranks_per_node=size)
    logits = [rng.standard_normal((T, E)) for _ in range(N)]
    drawn = [routing.top_experts_of_nodes(x, k, nodes, most, node_scores=rng.standard_normal((T, nodes))) for x in logits]
    routes = [routing.route(x, chosen) for x, chosen in zip(logits, drawn)]
    experts.forward_by_node(world, [rng.standard_normal((T, h)) for _ in range(N)], layer, routes)

    def reached(choices):
        return np.array([len(set(row)) for chosen in choices for row in (chosen // (size * each)).tolist()])

    counts, mean = reached(drawn), routing_formulas.nodes_reached(nodes, size * each, k, most)
    assert abs(counts.mean() - mean) <= 3 * counts.std() / np.sqrt(counts.size)
    crossing = world.between_nodes_bytes(experts.DISPATCH) / (h * 8)
    expected = routing_formulas.node_dispatch_sent_bytes(nodes, mean, T, h, 8) / (h * 8)
    # By token, how many of the nodes it reaches are not its own.
    own = np.repeat(np.arange(N) // size, T)
    far = np.array([len(set(row) - {home}) for row, home in zip((np.concatenate(drawn) // (size * each)).tolist(), own)])
    assert crossing.sum() == far.sum()
    assert abs(crossing.mean() - expected) <= 3 * far.std() * np.sqrt(T / N)
    kept_for_experts = reached([routing.top_experts_of_nodes(x, k, nodes, most) for x in logits])
    if most < nodes:
        assert kept_for_experts.mean() > mean + 3 * counts.std() / np.sqrt(counts.size)


def test_experts_that_a_step_touches():
    E, k, tokens, rng = 32, 3, 12, np.random.default_rng(2)
    counts = []
    for _ in range(300):
        logits = routing.skewed_logits(tokens, E, 0.0, rng)
        counts.append(np.count_nonzero(routing.route(logits, routing.top_experts(logits, k)).load(E)))
    assert abs(np.mean(counts) - serving.experts_touched(tokens, k, E)) <= 3 * np.std(counts) / np.sqrt(len(counts))


@few
@given(
    seed=st.integers(0, 1000),
    E=st.integers(1, 8),
    T=st.integers(1, 20),
    factor=st.sampled_from([0.5, 1.0, 2.0]),
    skew=st.sampled_from([0.0, 2.0]),
    data=st.data(),
)
def test_capacity_drops_exactly_what_is_over(seed, E, T, factor, skew, data):
    k, rng = data.draw(st.integers(1, E)), np.random.default_rng(seed)
    logits = routing.skewed_logits(T, E, skew, rng)
    chosen, limit = routing.top_experts(logits, k), routing.capacity_rows(T, k, E, factor)
    wanted = routing.route(logits, chosen).load(E)
    assert routing.route(logits, chosen, capacity=limit).load(E).tolist() == np.minimum(wanted, limit).tolist()
    assert wanted.sum() == k * T
    assert all(len(set(row)) == k for row in chosen.tolist())


def test_best_first_and_nodes_by_their_best_experts():
    logits = np.array([[3.0, -9.0, -9.0, 2.0, 2.1, -9.0, 2.9, -9.0, -9.0]])
    assert routing.top_experts(logits, 3).tolist() == [[0, 6, 4]]
    # One expert a node counts (ceil(2 / 2)): nodes 0 and 2 stay. With two (ceil(3 / 2)) node 1 is the best, and node 0 beside it.
    assert routing.top_experts_of_nodes(logits, 2, 3, 2).tolist() == [[0, 6]]
    assert routing.top_experts_of_nodes(logits, 3, 3, 2).tolist() == [[0, 4, 3]]


def test_skew_loads_the_first_experts_more():
    logits = routing.skewed_logits(4000, 8, 1.0, np.random.default_rng(0))
    load = routing.route(logits, routing.top_experts(logits, 1)).load(8)
    odds = 1 / np.arange(1, 9)
    share = odds / odds.sum()
    assert (np.abs(load - 4000 * share) <= 3 * np.sqrt(4000 * share * (1 - share))).all()


def test_refuses_a_limit_that_leaves_too_few_experts():
    with pytest.raises(ValueError, match="3 of 8 experts do not fit on 1 of 4 nodes"):
        routing.top_experts_of_nodes(np.zeros((1, 8)), 3, 4, 1)
