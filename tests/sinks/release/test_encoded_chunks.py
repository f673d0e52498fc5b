"""The chunks that are not decoded, against the expected state of each: incoming, waiting, or gone; loaded, or not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.internal_topics.position import Log, Place
from sinks.ready_log.chunk import ChunkSummary, chunk_record, summary_of
from sinks.release.encoded_chunks import Chunk, EncodedChunks, PayloadMissing
from state.order import OrderKey, key_of
from tests.messages import messages
from tests.sinks.release.accounts import check_chunks
from tests.thorough import examples

_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "let wait", "decode", "decode waiting", "wait again", "shrink", "restore"]),
        st.sampled_from(Log),
        st.integers(0, 9),
    ),
    max_size=60,
)


def chunk(place: Place, due_ms: int, nbytes: int = 10, decoded_bytes: int = 100) -> Chunk:
    first = OrderKey(due_ms, "in", 0, place.offset)
    return Chunk(place, first, 3, ChunkSummary(0, first, first, 3, decoded_bytes), bytes(nbytes))


def ready(*dues_ms: int) -> list[Chunk]:
    return [chunk(Place(Log.READY, offset), due_ms) for offset, due_ms in enumerate(dues_ms)]


def waiting(*own: Chunk) -> EncodedChunks:
    chunks = EncodedChunks()
    for each in own:
        chunks.add_waiting(each)
    return chunks


def dropped(own: Sequence[Chunk]) -> list[int]:
    return [at for at, each in enumerate(own) if each.payload is None]


@settings(max_examples=examples(300), deadline=None)
@given(steps=_STEPS)
def test_each_chunk_is_where_it_was_put_and_counts_as_long_as_it_is_there(steps: list[tuple[str, Log, int]]) -> None:
    chunks, ends = EncodedChunks(), dict.fromkeys(Log, 0)
    incoming: dict[Log, list[Chunk]] = {log: [] for log in Log}
    waits: list[Chunk] = []
    open_chunks: list[Chunk] = []
    for step, log, number in steps:
        if step == "arrive":
            incoming[log].append(chunk(Place(log, ends[log]), number, nbytes=1 + number))
            chunks.add_incoming(incoming[log][-1])
            ends[log] += 1 + number % 2
        elif step == "let wait" and incoming[log]:
            chunks.let_wait(log)
            waits.append(incoming[log].pop(0))
        elif step == "decode" and incoming[log] and incoming[log][0].payload is not None:
            chunks.forget_incoming(log)
            open_chunks.append(incoming[log].pop(0))
        elif step == "decode waiting" and waits and chunks.waiting[0].payload is not None:
            waits.sort(key=lambda each: each.need)
            chunks.forget_waiting()
            open_chunks.append(waits.pop(0))
        elif step == "wait again" and open_chunks:
            again = open_chunks[number % len(open_chunks)]
            count = again.count + 2 if again in waits else 2
            chunks.wait_from(again, OrderKey(5 + number, "in", 0, again.place.offset), 2)
            assert (again.first.deliver_at_ms, again.count) == (5 + number, count)
            waits += [] if again in waits else [again]
        elif step == "shrink":
            chunks.shrink(number * 2)
            # The next chunk of each log stays.
            stay = sum(len(own[0].payload or b"") for own in incoming.values() if own)
            assert chunks.nbytes <= max(number * 2, stay)
        elif step == "restore":
            for each in (*incoming[log], *waits):
                if each.place.log is log and each.place.offset % 3 == number % 3:
                    chunks.restore(each.place, bytes(5))
                    assert each.payload is not None
        check_chunks(chunks)
        assert {log: [*own] for log, own in chunks.incoming.items()} == incoming
        assert [*chunks.waiting] == sorted(waits, key=lambda each: each.need)
    everything = [*incoming[Log.NEAR], *incoming[Log.READY], *waits]
    assert chunks.messages == sum(each.count for each in everything)
    assert {each.place for each in chunks.in_memory()} == {each.place for each in everything if each.payload}
    assert all(each.place in chunks for each in everything)
    for place in chunks.first_waiting:
        assert place.offset == min(each.place.offset for each in waits if each.place.log is place.log)


def test_what_is_needed_last_is_dropped_first_and_the_next_of_each_log_never() -> None:
    own = ready(30, 10, 20)
    incoming = [chunk(Place(log, offset), 5) for log, offset in ((Log.NEAR, 0), (Log.READY, 3), (Log.READY, 4))]
    chunks = waiting(*own)
    for each in incoming:
        chunks.add_incoming(each)
    chunks.shrink(55)
    assert dropped(own) == [0]
    chunks.shrink(30)
    assert (dropped(own), dropped(incoming)) == ([0, 1, 2], [])
    chunks.restore(own[2].place, bytes(10))
    chunks.restore(own[1].place, bytes(10))
    chunks.shrink(40)
    assert dropped(own) == [0, 2]
    chunks.shrink(0)
    assert dropped(incoming) == [2]


def test_what_begins_before_a_key_is_needed_for_it() -> None:
    chunks = waiting(*ready(30, 10, 20))
    target = OrderKey(20, "in", 0, 2)
    assert [each.first.deliver_at_ms for each in chunks.waiting_before(target)] == [10]
    assert [each.first.deliver_at_ms for each in chunks.waiting_before(target._replace(offset=3))] == [10, 20]


@pytest.mark.parametrize(("decoded_bytes", "offsets"), [(100, [0, 1, 3]), (2**21, [0, 3]), (2**22, [3])])
def test_as_many_missing_chunks_are_read_again_as_a_few_megabytes_have(decoded_bytes: int, offsets: list[int]) -> None:
    own = [chunk(Place(Log.READY, offset), 1, decoded_bytes=decoded_bytes) for offset in range(4)]
    for each in (own[0], own[1], own[3]):
        each.payload = None
    missing = PayloadMissing([own[3], own[2], own[0], own[1]])
    assert missing.places == [Place(Log.READY, offset) for offset in offsets]


def test_a_chunk_that_waits_in_part_is_decoded_from_its_first_message_on() -> None:
    table = messages([{"deliver_at_ms": due_ms} for due_ms in (1, 2, 3)])
    value, headers = chunk_record(table)
    summary = summary_of(headers, "log")
    own = Chunk(Place(Log.READY, 0), key_of(table, 1), 2, summary, value)
    assert own.decoded().column("deliver_at_ms").to_pylist() == [2, 3]
    own.first = summary.first
    assert own.decoded().num_rows == 3
