"""What `Pending` keeps beside its messages, against what follows from these."""

from __future__ import annotations

from collections import Counter

from sinks.release.pending import Pending
from state.order import key_of


def check_accounts(pending: Pending) -> None:
    """Fail if the counts and indexes of `pending` are not those of its chunks."""
    assert Counter(pending._live) == Counter(chunk.offset for chunk in pending._waiting) + Counter(list(pending._open))
    loaded = [chunk.offset for chunk in pending._waiting if chunk.payload is not None]
    assert [chunk.offset for chunk in pending._loaded] == loaded
    encoded = [*pending._incoming, *pending._waiting]
    assert pending._encoded_bytes == sum(len(chunk.payload) for chunk in encoded if chunk.payload is not None)
    assert pending._open_bytes == sum(each.nbytes for each in pending._open.values())
    assert pending._by_offset == {chunk.offset: chunk for chunk in encoded}
    for each in pending._open.values():
        assert each.first_ms == key_of(each.messages).deliver_at_ms
        waiting = pending._by_offset.get(each.offset)
        assert waiting is None or (waiting is each.chunk and waiting.first > key_of(each.messages, -1))
