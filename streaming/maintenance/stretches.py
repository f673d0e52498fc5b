"""Adjacent buckets: only these are merged, so one that is left alone divides those around it."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from itertools import groupby


def stretches(buckets: Iterable[int], taken: Collection[Hashable]) -> Iterator[list[int]]:
    """Yield the runs of adjacent `buckets` that are not `taken`, ascending."""
    for is_taken, numbers in groupby(sorted(buckets), key=taken.__contains__):
        if not is_taken:
            yield list(numbers)
