"""Checks the counts and indexes of `Pending` and `EncodedChunks` against their messages."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from sinks.internal_topics.position import Log, Place
from sinks.release.encoded_chunks import EncodedChunks
from sinks.release.pending import Pending
from state.order import key_of


def check_accounts(pending: Pending) -> None:
    """Fail if the counts and indexes of `pending` do not match its chunks."""
    check_chunks(pending.merge.chunks)
    waiting = {chunk.place: chunk for chunk in pending.merge.chunks.waiting}
    opened = pending.merge.opened
    offsets = Counter(Place(log, offset) for log, own in opened._offsets.items() for offset in own)
    assert offsets == Counter(list(opened._open))
    assert opened.nbytes == sum(each.nbytes for each in opened)
    for place, each in opened._open.items():
        assert each.first_ms == key_of(each.messages).deliver_at_ms
        assert place not in waiting or (waiting[place] is each.chunk and each.chunk.first > key_of(each.messages, -1))


def check_chunks(chunks: EncodedChunks) -> None:
    """Fail if the counts and indexes of `chunks` do not match its incoming and its waiting chunks."""
    waiting = [*chunks.waiting]
    assert waiting == sorted(waiting, key=lambda chunk: chunk.need)
    assert [*chunks._loaded] == [chunk for chunk in waiting if chunk.payload is not None]
    for log in Log:
        assert [*chunks._offsets[log]] == sorted(chunk.place.offset for chunk in waiting if chunk.place.log is log)
    everything = [*chain(*chunks.incoming.values()), *waiting]
    assert chunks.nbytes == sum(len(chunk.payload) for chunk in everything if chunk.payload is not None)
    assert chunks._by_place == {chunk.place: chunk for chunk in everything}
    assert len(chunks) == len(everything)
