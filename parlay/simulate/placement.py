"""Which tokens each rank holds, and which (query, key) pairs a causal mask leaves visible."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parlay.simulate.collectives import even_sizes

Positions = NDArray[np.int64]
LAYOUTS = ("contiguous", "zigzag", "striped")


def token_positions(seq_len: int, ranks: int, layout: str = "contiguous") -> list[Positions]:
    """Return the positions of the tokens that each rank holds, in the order in which it holds them.

    Parameters
    ----------
    seq_len : int
        Tokens of the sequence. [token]
    ranks : int
        Ranks N that share them. [-]
    layout : {"contiguous", "zigzag", "striped"}
        One run of tokens a rank; chunks r and 2 N - 1 - r of 2 N; or every N-th token from r on. [-]

    Returns
    -------
    list of ndarray
        One array of positions a rank; the sizes differ where N does not divide the sequence. [-]

    Examples
    --------
    >>> [p.tolist() for p in token_positions(8, 4, "zigzag")]
    [[0, 7], [1, 6], [2, 5], [3, 4]]
    >>> [p.tolist() for p in token_positions(5, 2, "striped")]
    [[0, 2, 4], [1, 3]]
    """
    if layout not in LAYOUTS:
        raise ValueError(f"`layout` must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    every = np.arange(seq_len, dtype=np.int64)
    if layout == "striped":
        return [every[r::ranks] for r in range(ranks)]
    pieces = ranks if layout == "contiguous" else 2 * ranks
    chunks = np.split(every, np.cumsum(even_sizes(seq_len, pieces))[:-1])
    if layout == "contiguous":
        return list(chunks)
    return [np.concatenate([chunks[r], chunks[2 * ranks - 1 - r]]) for r in range(ranks)]


def visible(queries: Positions, keys: Positions, *, causal: bool, window: int | None = None) -> NDArray[np.bool_]:
    """Return which keys (columns) each query (row) may see: all, or those at its own position and before.

    With a `window` of w tokens a causal query sees the last w of them only, its own position included.
    """
    if not causal:
        return np.ones((queries.size, keys.size), np.bool_)
    seen = keys[None, :] <= queries[:, None]
    if window is not None:
        seen &= keys[None, :] > queries[:, None] - window
    return np.asarray(seen)
