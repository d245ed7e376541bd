"""What has been worked out before: a layer's price follows from the question and one row of a Shard, so it is priced once.

Layouts that differ only in how often and where a layer runs (pipeline, data parallelism, ZeRO) share a row; those that differ only
in a layer's row (micro-batch, recompute, overlaps) share what a rank owns and what moves once a step. Questions are told apart by
the very objects that state them, which are frozen and which an entry holds, so that nothing has to be compared.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from parlay.estimate.shard import Shard

T = TypeVar("T")

MOST_ROWS = 8  # a search prices thousands of rows at once and none of them again
MOST_ENTRIES = 512  # all caches full of DeepSeek-V3 take 42 MB


class Kept(Generic[T]):
    """Values by question and what else they follow from; the oldest are dropped."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, tuple[tuple[object, ...], T]] = OrderedDict()

    def get(self, question: tuple[object, ...], make: Callable[[], T], *more: Hashable) -> T:
        """Return the value for a question and `more`, made now if it is new."""
        key = (*map(id, question), *more)
        found = self._found.get(key)
        if found is not None:
            return found[1]
        value = make()
        self._found[key] = (question, value)  # holding the question keeps its ids from being given to others
        if len(self._found) > MOST_ENTRIES:
            self._found.popitem(last=False)
        return value

    def of_rows(self, question: tuple[object, ...], shard: Shard, make: Callable[[], T], *more: Hashable) -> T:
        """Return the value for a question and the rows of a Shard, which are remembered only where they are few."""
        return self.get(question, make, shard.key, *more) if len(shard.tp) <= MOST_ROWS else make()

    def of_columns(
        self, question: tuple[object, ...], columns: Sequence[NDArray[Any]], make: Callable[[], T], *more: Hashable
    ) -> T:
        """Return the value for a question and the rows of some columns, which are remembered only where they are few."""
        if len(columns[0]) > MOST_ROWS:
            return make()
        return self.get(question, make, len(columns[0]), *[column.tobytes() for column in columns], *more)

    def clear(self) -> None:
        """Forget everything."""
        self._found.clear()
