"""What `Pending` keeps beside its messages, against what follows from these."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from sinks.internal_topics.position import Place
from sinks.release.pending import Pending
from state.order import key_of


def check_accounts(pending: Pending) -> None:
    """Fail if the counts and indexes of `pending` are not those of its chunks."""
    live = Counter(Place(log, offset) for log, offsets in pending._live.items() for offset in offsets)
    assert live == Counter(chunk.place for chunk in pending._waiting) + Counter(list(pending._open))
    loaded = [chunk.place for chunk in pending._waiting if chunk.payload is not None]
    assert [chunk.place for chunk in pending._loaded] == loaded
    encoded = [*chain(*pending._incoming.values()), *pending._waiting]
    assert pending._encoded_bytes == sum(len(chunk.payload) for chunk in encoded if chunk.payload is not None)
    assert pending._open_bytes == sum(each.nbytes for each in pending._open.values())
    assert pending._by_place == {chunk.place: chunk for chunk in encoded}
    for each in pending._open.values():
        assert each.first_ms == key_of(each.messages).deliver_at_ms
        waiting = pending._by_place.get(each.place)
        assert waiting is None or (waiting is each.chunk and waiting.first > key_of(each.messages, -1))
