"""The ids of one source, (topic, partition), in the message-id index, as pages in offset order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from state.index.slot_page import PAGE_SPAN, SlotPage

# The most ids of a page, which limits what adding one more id may have to rewrite (about 3 ms).
PAGE_IDS = 1 << 16

_LAST_OFFSET = (1 << 63) - 1
_NOTHING = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


class SourcePages:
    """Pages of at most `page_ids` ids that do not overlap. `floor` is the first slot that is not dropped.

    Deletes are lazy: dropped ids stay until the page is next rewritten.
    """

    def __init__(self, page_ids: int = PAGE_IDS) -> None:
        self._page_ids = page_ids
        self._pages: list[SlotPage] = []
        self._firsts: list[int] = []

    def __len__(self) -> int:
        """The number of ids stored, including dropped ones."""
        return sum(map(len, self._pages))

    @property
    def nbytes(self) -> int:
        """Bytes of the content, without the Python objects around it."""
        return sum(page.nbytes for page in self._pages)

    def slot_of(self, offset: int) -> int | None:
        """Return the number of an id's slot, dropped or not, or None if no page has the id."""
        at = bisect_right(self._firsts, offset) - 1
        return self._pages[at].slot_of(offset) if at >= 0 else None

    def add(self, offsets: np.ndarray, slots: np.ndarray, floor: int) -> np.ndarray:
        """Add ids, and return the slots of the new ones.

        `offsets`, at least one, ascend. If several are equal, the first counts.
        """
        homes = np.maximum(np.searchsorted(np.array(self._firsts, dtype=np.int64), offsets, side="right") - 1, 0)
        starts = np.flatnonzero(np.diff(homes, prepend=-1))
        pages: list[SlotPage] = []
        added: list[np.ndarray] = []
        done = 0
        for start, end in pairwise([*starts.tolist(), len(offsets)]):
            home = int(homes[start])
            pages += self._pages[done:home]
            known = _live(self._pages[home], floor) if self._pages else _NOTHING
            merged, merged_slots, new = _union(known, (offsets[start:end], slots[start:end]))
            pages += self._paged(merged, merged_slots)
            added.append(new)
            done = home + 1
        self._replace(pages + self._pages[done:])
        return np.concatenate(added)

    def sweep(self, floor: int) -> None:
        """Rewrite the pages without dropped ids, and join pages that became small."""
        pages: list[SlotPage] = []
        offsets, slots = _NOTHING
        for page in self._pages:
            if page.last_slot < floor:
                continue
            more, more_slots = _live(page, floor)
            if len(offsets) + len(more) > self._page_ids:
                pages += self._paged(offsets, slots)
                offsets, slots = _NOTHING
            offsets, slots = np.concatenate((offsets, more)), np.concatenate((slots, more_slots))
        self._replace(pages + self._paged(offsets, slots))

    def offsets(self, floor: int) -> Iterator[np.ndarray]:
        """Yield the offsets that are not dropped, ascending, a page at a time."""
        for page in self._pages:
            if page.last_slot >= floor:
                yield _live(page, floor)[0]

    def _paged(self, offsets: np.ndarray, slots: np.ndarray) -> list[SlotPage]:
        """Cut ids into as few pages as the limits allow, of about equal size, none of them empty."""
        pages: list[SlotPage] = []
        start = 0
        while start < len(offsets):
            last = min(int(offsets[start]) + PAGE_SPAN - 1, _LAST_OFFSET)
            left = int(np.searchsorted(offsets, last, side="right")) - start
            end = start + -(-left // -(-left // self._page_ids))
            pages.append(SlotPage(offsets[start:end], slots[start:end]))
            start = end
        return pages

    def _replace(self, pages: list[SlotPage]) -> None:
        self._pages, self._firsts = pages, [page.first_offset for page in pages]


def _live(page: SlotPage, floor: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets and slots of a page that are not dropped."""
    offsets, slots = page.content()
    if page.first_slot >= floor:
        return offsets, slots
    live = slots >= floor
    return offsets[live], slots[live]


def _union(
    known: tuple[np.ndarray, np.ndarray], added: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all offsets in order, their slots, and the slots of the offsets that only `added` has."""
    offsets, slots = np.concatenate((known[0], added[0])), np.concatenate((known[1], added[1]))
    order = np.argsort(offsets, kind="stable")
    ordered = offsets[order]
    first = np.ones(len(order), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    kept = order[first]
    return offsets[kept], slots[kept], slots[kept[kept >= len(known[0])]]
