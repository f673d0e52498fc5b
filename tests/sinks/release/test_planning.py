"""The core of the release stage plans messages when they are nearly due, and keeps to its limits and memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sinks.internal_topics.position import Log, Place, Position
from sinks.ready_log.chunk import chunk_record, summary_of
from sinks.release.pending import Pending
from sinks.release.planned import Planned
from sinks.release.rate_limiter import Rated
from sinks.release.room import Limits
from state.order import in_order
from tests.messages import messages
from tests.sinks.release.pending_model import Logs, Release


def test_nothing_is_planned_before_it_is_nearly_due() -> None:
    logs = Logs.of([(0, messages([{"deliver_at_ms": 1_000}, {"deliver_at_ms": 1_015, "offset": 1}]))])
    release = Release(logs, Limits(10, 1_000_000, 20))
    release.arrive(1)
    assert release.pending.next_due_ms == 0
    assert not release.plan(800, 100)
    assert release.pending.next_due_ms == 1_000
    assert release.plan(900, 100)
    assert release.planned[0].last_due_ms == 1_015


def test_a_transaction_has_no_more_for_a_topic_than_its_limit() -> None:
    topics = ["b", "a", "b", "a", "b", "a", "a", "b"]
    rows = [{"deliver_at_ms": 1, "offset": number, "output_topic": topic} for number, topic in enumerate(topics)]
    release = Release(Logs.of([(0, messages(rows))]), Limits(7, 1_000_000, 20, {"a": 2, "c": 1}))
    release.arrive(1)
    while release.plan(10, 0):
        pass
    assert [planned.messages.num_rows for planned in release.planned] == [5, 3]


@pytest.mark.parametrize(
    ("most", "together"),
    [({}, [30]), ({"c": 1}, [30]), ({"a": 7}, [12, 12, 6]), ({"a": 1}, [6] * 5), ({None: 13}, [12, 12, 6])],
)
def test_late_messages_go_together_as_far_as_the_limits_of_their_topics_allow_and_by_chunks(
    most: dict[Rated, int], together: list[int]
) -> None:
    first = messages([{"deliver_at_ms": 1_000}])
    # Each chunk has three to "a", and three to "b", due before the messages that are released by then.
    late = [
        messages({"deliver_at_ms": 1, "offset": 10 * n + at, "output_topic": "ab"[at % 2]} for at in range(6))
        for n in range(1, 6)
    ]
    release = Release(Logs.of(list(enumerate([first, *late]))), Limits(50, 1_000_000, 20, most))
    release.arrive(1)
    assert release.plan(1_000, 0)
    release.arrive(5)
    while release.plan(1_000, 0):
        pass
    assert [planned.messages.num_rows for planned in release.planned] == [1, *together]
    assert release.planned[-1].position.ready.taken_in == 6


def test_a_chunk_that_comes_again_is_ignored() -> None:
    logs = Logs.of([(3, messages([{"deliver_at_ms": 1}])), (5, messages([{"deliver_at_ms": 2, "offset": 1}]))])
    release = Release(logs, Limits(10, 1_000_000, 20))
    release.arrive(2)
    for offset in (3, 5):
        release.add(Place(Log.READY, offset))
    assert release.plan(10, 0)
    assert release.planned[0].messages.num_rows == 2
    assert not release.plan(10, 0)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_after_a_crash_none_is_missing_of_messages_that_have_one_key(most: int) -> None:
    # The input topic was created again, and its messages are due at the same instant as the messages before.
    rows = [{"deliver_at_ms": 1_000, "offset": offset} for offset in (0, 1, 1, 1, 2, 3, 3)]
    release = Release(Logs.of([(0, messages(rows))]), Limits(most, 1_000_000, 20))
    release.arrive(1)
    while release.plan(1_000, 0):
        release.commit()
        release.open()
    assert [key.offset for key in release.seen] == [0, 1, 1, 1, 2, 3, 3]


def test_it_tells_which_topics_its_messages_are_for_wherever_they_are() -> None:
    def to(topic: str, due: int, number: int) -> pa.Table:
        return messages([{"deliver_at_ms": due, "offset": number, "output_topic": topic, "output_partition": number}])

    opened = messages(
        {"deliver_at_ms": due, "offset": 9, "output_topic": topic} for due, topic in ((1_100, "now"), (90_000, "open"))
    )
    logs = Logs.of([(0, opened), (1, to("now", 1_000, 1)), (2, to("later", 50_000, 2)), (3, to("next", 60_000, 3))])
    release = Release(logs, Limits(1, 1_000_000, 20))
    release.arrive(3)
    assert release.plan(1_050, 0)
    release.arrive(1)
    assert release.pending.merge.needs() == {"now": 1, "open": 1, "later": 3, "next": 4}
    release.pending.merge.max_bytes = 0
    release.pending.merge.shrink()
    assert "later" not in release.pending.merge.needs()


@pytest.mark.parametrize("count", [3, 4, 5, 9])
@pytest.mark.parametrize("max_bytes", [2_000, 4_000, 8_000])
def test_messages_with_one_key_are_released_though_memory_is_short(count: int, max_bytes: int) -> None:
    # The input topic was created again, and its messages are due at the same instant as the messages before.
    rows = [{"deliver_at_ms": 1_000, "offset": at // 2, "value": bytes(500)} for at in range(2 * count)]
    release = Release(Logs.of([(0, messages(rows))]), Limits(1_000, 1_000_000, 20))
    release.max_bytes = release.pending.merge.max_bytes = max_bytes
    release.arrive(1)
    while release.plan(1_000, 0):
        release.commit()
    assert [key.offset for key in release.seen] == [at // 2 for at in range(2 * count)]


_SPREAD_CHUNKS, _SPREAD_MS = 25, 600_000


def _spread_widely() -> Logs:
    """Return a log of chunks, each with messages of ten minutes: 100 of 1 kB."""
    chance, value = np.random.default_rng(1), bytes(1_000)
    dues = chance.integers(0, _SPREAD_MS, (_SPREAD_CHUNKS, 100))
    rows = [
        [{"deliver_at_ms": due, "offset": 100 * offset + at, "value": value} for at, due in enumerate(own)]
        for offset, own in enumerate(dues.tolist())
    ]
    return Logs.of((offset, in_order(messages(own))) for offset, own in enumerate(rows))


@pytest.mark.parametrize("restarts", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_chunks_of_which_each_has_messages_of_ten_minutes_keep_within_memory(restarts: bool) -> None:
    release = Release(_spread_widely(), Limits(1_000, 1_000_000, 20))
    largest = max(table.nbytes for _, table in release.logs.chunks)
    total = sum(table.nbytes for _, table in release.logs.chunks)
    release.max_bytes = release.pending.merge.max_bytes = 175_000
    release.arrive(len(release.logs.chunks))
    for now_ms in range(0, _SPREAD_MS + 2_000, 2_000):
        if restarts and now_ms % 100_000 == 0:
            release.open()
        while release.plan(now_ms, 0):
            release.commit()
            release.pending.merge.shrink()
            assert release.pending.merge.nbytes <= release.max_bytes + release.pending.merge.current.nbytes + largest
    assert len(release.seen) == 100 * _SPREAD_CHUNKS
    assert release.seen == sorted(release.seen)
    # Each chunk has a share of the memory, and is read again for each of these shares.
    assert release.restored <= 8 * _SPREAD_CHUNKS * total / release.max_bytes


def _offsets(planned: Planned | None) -> list[int]:
    return [] if planned is None else planned.messages.column("offset").to_pylist()


def test_between_late_messages_those_that_are_due_have_their_turn_unless_something_is_hidden() -> None:
    limits, pending = Limits(2, 1_000_000, 20), Pending(Position())

    def add(place: Place, dues: dict[int, int]) -> None:
        rows = [{"offset": number, "deliver_at_ms": due} for number, due in dues.items()]
        value, headers = chunk_record(in_order(messages(rows)))
        pending.add(place, summary_of(headers, "log"), value)

    def plan(now_ms: int) -> list[int]:
        return _offsets(pending.plan(now_ms, now_ms + 100, limits))

    add(Place(Log.NEAR, 0), {1: 1_000, 2: 1_050, 3: 1_090, 4: 1_300})
    assert plan(900) == [1]
    # Many answers, and behind them a message that is due much later.
    for at in range(3):
        add(Place(Log.READY, at), {10 + at: 500 + at, 20 + at: 500 + at})
    add(Place(Log.READY, 3), {30: 60_000})
    assert [plan(990) for _ in range(5)] == [[10, 20], [2], [11, 21], [3], [12, 22]]
    assert plan(1_250) == [4]
    # Now the hidden message is due before others.
    add(Place(Log.NEAR, 1), {5: 2_050, 6: 2_080})
    for at in range(2):
        add(Place(Log.READY, 4 + at), {40 + at: 500, 50 + at: 500})
    add(Place(Log.READY, 6), {7: 2_060})
    assert [plan(1_990) for _ in range(2)] == [[40, 50], [41, 51]]
    assert [plan(2_040) for _ in range(2)] == [[5, 7], [6]]
