"""How many GPUs are enough, of the numbers that a cluster is handed out in: parts of a node, and whole nodes."""

from __future__ import annotations

from collections.abc import Callable

from parlay.hardware.spec import Cluster
from parlay.layouts.rules import divisors

FINE = 16  # counts between a doubling and the next: every node up to so many nodes
COUNTS = f"parts of a node that divide it, and whole nodes (above {2 * FINE} nodes, every {FINE}th part of a doubling)"


def fewest_gpus(cluster: Cluster, enough: Callable[[int], bool], *, above: int = 0, most: int) -> int | None:
    """Return the fewest GPUs, more than `above` and at most `most`, that are enough; None if none are.

    Doublings are tried first, then what lies between the last that is not enough and the first that is, in rising order.

    Parameters
    ----------
    cluster : Cluster
        Its nodes and how many there are. [-]
    enough : callable
        Whether so many GPUs are enough. [-]
    above, most : int
        Bounds of the answer. [-]

    Returns
    -------
    int or None
        GPUs. [-]

    Examples
    --------
    >>> from parlay.hardware.load import load_cluster
    >>> h100 = load_cluster("dgx-h100")
    >>> [fewest_gpus(h100, lambda n: n >= need, most=4096) for need in (1, 3, 9, 18, 300, 5000)]
    [1, 4, 16, 24, 304, None]
    >>> fewest_gpus(h100, lambda n: n >= 3, above=16, most=4096)
    24
    """
    node = int(cluster.gpus_per_node.value)
    limit = most if cluster.max_nodes is None else min(most, int(cluster.max_nodes.value) * node)
    parts = [n for n in divisors(node) if above < n <= limit]
    found = next((n for n in parts if enough(n)), None)
    if found is not None:
        return found
    below, nodes = max(1, above // node), 1  # nodes that are not enough, or not asked about
    while nodes * node <= above:
        nodes *= 2
    while nodes * node <= limit and not enough(nodes * node):
        below, nodes = nodes, 2 * nodes
    step = max(1, below // FINE)
    between = range(below + step, min(nodes, limit // node + 1), step)
    last = [nodes * node] if nodes * node <= limit else []
    return next((n * node for n in between if n * node > above and enough(n * node)), last[0] if last else None)
