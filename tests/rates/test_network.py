"""Collectives: identities of the ring, where the group lies, and what was measured on named machines."""

import numpy as np
import pytest

from parlay.hardware.load import cluster_of, load_cluster
from parlay.rates.choose import rates_for
from parlay.rates.datasheet import datasheet_rates
from parlay.rates.interface import Group
from parlay.rates.network import wire_factor

OPS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send_recv")
GIB = 2.0**30


def group(size, local):
    return Group(np.asarray(size, dtype=float), np.asarray(local, dtype=float))


def test_bus_factors_are_those_of_nccl_tests():
    assert float(wire_factor("all_reduce", 8)) == pytest.approx(2 * 7 / 8)
    assert float(wire_factor("all_gather", 8)) == pytest.approx(7 / 8)
    assert float(wire_factor("all_to_all", 8)) == pytest.approx(7 / 8)
    assert float(wire_factor("broadcast", 8)) == 1.0
    assert wire_factor("all_reduce", [1, 1]).tolist() == [0.0, 0.0]


def test_a_group_of_strided_ranks_finds_its_place():
    g = Group.of([8, 8, 16, 4, 6, 12, 6], [1, 2, 8, 1, 1, 1, 2], 8.0)
    assert g.local.tolist() == [8, 4, 1, 4, 2, 4, 2]  # six in a row: {6, 7, 8, ...} has two of them in the first domain


@pytest.mark.parametrize("op", OPS)
def test_one_rank_and_no_bytes_take_no_time(cluster, op):
    r = datasheet_rates(cluster())
    assert r.collective(op, [0.0, 1e9], group([8, 1], [8, 1])).seconds.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("place", [(8, 8), (32, 8), (32, 1), (2, 2), (2, 1)])
def test_time_grows_with_bytes_and_no_link_is_outrun(cluster, op, place):
    c = cluster()
    size = np.logspace(2, 10.5, 60)
    t = datasheet_rates(c).collective(op, size, group(*place)).seconds
    assert (np.diff(t) > 0).all()
    if op != "all_reduce":  # an all-reduce in the switch sends each byte once
        n, local = place
        rate = c.scale_up_link.bytes_per_s.value if n == local else local * c.nic_bytes_per_s_per_gpu
        remote = (n - local) / n if op == "all_to_all" and n > local else None
        wire = remote * local if remote else float(wire_factor(op, n)) * (local if op == "send_recv" and n > local else 1)
        assert (t >= wire * size / rate).all()


def test_ranks_of_a_node_share_its_nics(cluster):
    """Eight ranks a node reach eight NICs together; one rank a node has one."""
    r = datasheet_rates(cluster())
    together = float(r.collective("all_gather", 4 * GIB, group(32, 8)).seconds)
    apart = float(r.collective("all_gather", 4 * GIB, group(32, 1)).seconds)
    assert 6.5 < apart / together < 8


def test_an_oversubscribed_network_has_its_share_of_the_ports_rate():
    """4:1 between nodes is a quarter of the rate there and nothing inside a node; pods of 256 GPUs have enough."""
    table = {"extends": "dgx-h100", "id": "mine", "name": "mine"}
    plain, slow, pods = (
        datasheet_rates(cluster_of(table | more, "mine"))
        for more in ({"oversubscription": 1}, {"oversubscription": 4}, {"oversubscription": 4, "pod_gpus": 256})
    )
    for op in OPS:
        across, inside = group(32, 8), group(8, 8)
        one, four, apart = (float(r.collective(op, 64 * GIB, across).seconds) for r in (plain, slow, pods))
        assert 3 < four / one < 4.01
        assert apart == one
        assert slow.collective(op, GIB, inside).seconds == plain.collective(op, GIB, inside).seconds


@pytest.mark.parametrize(("pod", "slower"), [(8, 4), (16, 2), (32, 1), (256, 1)])
def test_the_rings_of_a_node_leave_a_pod_together(pod, slower):
    """4:1 above pods: eight ports' traffic crosses the border over a quarter of the pod's ports."""
    table = {"extends": "dgx-h100", "id": "mine", "name": "mine", "oversubscription": 4, "pod_gpus": pod}
    assert cluster_of(table, "mine").nic_bytes_per_s_per_gpu == 50e9 / slower


def test_a_ring_across_nodes_passes_every_rank(cluster):
    """NCCL's ring of 512 ranks in 64 nodes: 8.4 us, 63 hops of 4 us between nodes and 448 of 1.9 us over NVLink (tuning.cc)."""
    r = datasheet_rates(cluster())
    of_no_bytes = 8.4e-6 + 63 * 4e-6 + 448 * 1.9e-6
    for op in ("all_gather", "reduce_scatter"):
        seconds = r.collective(op, [1.0, 8 * GIB], group(512, 8)).seconds
        assert seconds[0] == pytest.approx(of_no_bytes, rel=1e-3)
        assert seconds[1] > 8 * GIB * 511 / 512 / (8 * 0.95 * 50e9) + 0.5 * of_no_bytes
    one_a_node = float(r.collective("all_gather", 1.0, group(64, 1)).seconds)
    assert one_a_node == pytest.approx(8.4e-6 + 63 * 4e-6, rel=1e-3)


def test_fewer_nics_make_a_node_slower_and_only_across_nodes(cluster):
    many, few = datasheet_rates(cluster(nics=8)), datasheet_rates(cluster(nics=1))
    across, inside = group(32, 8), group(8, 8)
    slow, fast = (float(r.collective("all_reduce", 16 * GIB, across).seconds) for r in (few, many))
    assert slow / fast == pytest.approx(8, rel=0.1)
    assert few.collective("all_reduce", GIB, inside).seconds == many.collective("all_reduce", GIB, inside).seconds


def test_an_all_to_all_cannot_borrow_nics(cluster):
    """Two nodes: half of each rank's bytes leave over its own NIC (nccl-tests issues 130 and 267)."""
    r = datasheet_rates(cluster())
    t = float(r.collective("all_to_all", GIB, group(16, 8)).seconds)
    algorithm_bandwidth = GIB / t
    assert algorithm_bandwidth < 2 * 50e9  # N / (N - 1) x the NIC is the most that N nodes can read
    assert algorithm_bandwidth > 0.75 * 2 * 50e9


def test_a_wider_scale_up_domain_keeps_the_group_off_the_network(cluster):
    narrow = datasheet_rates(cluster("gb200", per_node=4, domain=4, nics=4))
    wide = datasheet_rates(cluster("gb200", per_node=4, domain=72, nics=4))
    inside = Group.of(32, 1, 64.0)
    crossing = Group.of(32, 1, 4.0)
    assert float(wide.collective("all_gather", GIB, inside).seconds) * 3 < float(
        narrow.collective("all_gather", GIB, crossing).seconds
    )


def test_gpus_without_a_switch_use_only_the_links_to_their_peers(cluster):
    """MI300X: two GPUs share one of seven links; 47.7 GB/s against 312.9 for eight (ml-engineering)."""
    r = datasheet_rates(cluster("mi300x"))
    t2, t8 = (float(r.collective("all_reduce", 4 * GIB, group(n, n)).seconds) for n in (2, 8))
    assert 4 * GIB * 1.0 / t2 == pytest.approx(47.7e9, rel=0.15)
    assert 4 * GIB * 1.75 / t8 == pytest.approx(312.9e9, rel=0.15)


MEASURED_DEFAULTS = [  # published plateaus, none of them the value that a constant was set from alone
    ("h200-sxm-141", "all_reduce", 8, 16 * GIB, 480.0e9, 0.05),  # ml-engineering, NVLS on
    ("h200-sxm-141", "all_gather", 8, 16 * GIB, 361.4e9, 0.05),
    ("h200-sxm-141", "reduce_scatter", 8, 16 * GIB, 362.9e9, 0.05),
    ("h200-sxm-141", "all_reduce", 4, 8 * GIB, 363.3e9, 0.05),  # a ring: too few ranks for the switch
    ("a100-sxm-80", "all_reduce", 8, 16 * GIB, 234.9e9, 0.07),
    ("b200-sxm", "all_reduce", 8, 16 * GIB, 845.7e9, 0.10),
    ("h100-sxm-80", "send_recv", 2, GIB, 380e9, 0.08),  # nccl issue 1264
]


@pytest.mark.parametrize(("device", "op", "ranks", "nbytes", "bus", "slack"), MEASURED_DEFAULTS)
def test_plateaus_lie_near_published_bus_bandwidths(cluster, device, op, ranks, nbytes, bus, slack):
    t = float(datasheet_rates(cluster(device)).collective(op, nbytes, group(ranks, ranks)).seconds)
    assert float(wire_factor(op, ranks)) * nbytes / t == pytest.approx(bus, rel=slack)


def test_one_400_gbit_nic_delivers_48_to_49_gbytes_per_s(cluster):
    """nccl-tests issue 267."""
    t = float(datasheet_rates(cluster()).collective("send_recv", 16 * GIB, group(2, 1)).seconds)
    assert 16 * GIB / t == pytest.approx(48.5e9, rel=0.025)


def test_omni_path_carries_what_jean_zay_measured():
    """135 Gbit/s a node over four ports of 100 (ml-engineering, network/README.md)."""
    rates = rates_for(load_cluster("jean-zay-a100"))
    seconds = float(rates.collective("all_gather", 64 * GIB, group(16, 8)).seconds)
    assert 15 / 16 * 64 * GIB / seconds == pytest.approx(135e9 / 8, rel=0.02)


def test_a_communicator_over_sockets_reaches_less_than_its_port():
    """4.7 GB/s of bus bandwidth between two nodes over 100 Gbit/s (nccl issue 398), whatever their ranks; several communicators at once
    fill the port, of which one GPU of eight has an eighth.
    """
    rates = rates_for(load_cluster("aws-p5-tcp"))
    for size, local, reached in ((16, 8, 4.7e9), (8, 4, 4.7e9), (4, 2, 0.95 * 12.5e9 / 4), (2, 1, 0.95 * 12.5e9 / 8)):
        seconds = float(rates.collective("all_reduce", 64 * GIB, group(size, local)).seconds)
        assert 2 * (size - 1) / size * 64 * GIB / seconds == pytest.approx(reached, rel=0.02)
    assert GIB / float(rates.collective("send_recv", GIB, group(2, 1)).seconds) == pytest.approx(0.95 * 12.5e9 / 8, rel=0.02)
    # An all-to-all of 16 ranks sends half of its bytes out of each node's eight ranks.
    seconds = float(rates.collective("all_to_all", 64 * GIB, group(16, 8)).seconds)
    assert 8 * 0.5 * 64 * GIB / seconds == pytest.approx(4.7e9, rel=0.02)


def test_cut_down_links_reach_what_was_measured():
    """H800: 200 GB/s nominal, about 160 achieved; H20: 450 nominal, less than 380 (DeepEP issue 16)."""
    h800, h20 = (rates_for(load_cluster(name)) for name in ("hgx-h800", "hgx-h20"))
    for op in ("all_gather", "reduce_scatter"):
        bus = 7 / 8 * 4 * GIB / float(h800.collective(op, 4 * GIB, group(8, 8)).seconds)
        assert bus == pytest.approx(160e9, rel=0.05)
        bus = 7 / 8 * 4 * GIB / float(h20.collective(op, 4 * GIB, group(8, 8)).seconds)
        assert 337e9 * 0.95 < bus < 380e9
    assert GIB / float(h20.collective("send_recv", GIB, group(2, 2)).seconds) < 380e9


FOUR_NODES_OF_B200 = [
    (1, 5.37),
    (4, 18.90),
    (16, 64.43),
    (64, 156.74),
    (256, 229.09),
    (512, 326.90),
    (1024, 361.99),
    (2048, 372.42),
    (4096, 377.34),
    (16384, 381.80),
]  # MiB, GB/s


@pytest.mark.parametrize(("mebibytes", "bus"), FOUR_NODES_OF_B200)
def test_four_nodes_all_reduce_as_measured(cluster, mebibytes, bus):
    """32 x B200 with 50 GB/s a GPU over EFA (ml-engineering, network/README.md)."""
    size = mebibytes * 2.0**20
    t = float(datasheet_rates(cluster("b200-sxm", nic_kind="efa")).collective("all_reduce", size, group(32, 8)).seconds)
    assert 1.9375 * size / t / 1e9 == pytest.approx(bus, rel=0.25)


def test_groups_broadcast_with_bytes(cluster):
    r = datasheet_rates(cluster())
    size = np.array([[1e6], [1e9]])
    g = group([8, 16, 64], [8, 8, 1])
    t = r.collective("all_reduce", size, g).seconds
    assert t.shape == (2, 3)
    assert t[1, 2] == pytest.approx(float(r.collective("all_reduce", 1e9, group(64, 1)).seconds))


def test_a_gpu_that_sends_alone_has_a_nic(cluster):
    """Four NICs for eight GPUs: twice its share, and no more; as many NICs as GPUs: its share."""
    few, many = (datasheet_rates(cluster(nics=n)) for n in (4, 8))

    def send(rates, senders):
        return float(rates.collective("send_recv", GIB, Group(np.array(2.0), np.array(1.0), senders)).seconds)

    assert send(few, 1.0) / send(few, 0.5) == pytest.approx(2.0, rel=0.01)
    assert send(few, 0.125) == send(few, 0.5) == send(many, 1.0) == send(many, 0.125)
    assert send(few, 0.75) == pytest.approx(send(few, 1.0) * 0.75, rel=0.01)
