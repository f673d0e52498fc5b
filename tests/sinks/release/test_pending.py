"""The core of the release stage against a sorted list: random logs, arrivals, crashes and memory."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.internal_topics.position import Position
from sinks.ready_log.chunk import RecordHeaders, chunk_record, summary_of
from sinks.release.pending import PayloadMissing, Pending, Planned
from sinks.release.rate_limiter import Rated
from sinks.release.room import Limits
from state.order import OrderKey, in_order, keys_of
from tests.messages import messages
from tests.sinks.release.accounts import check_accounts

# The due times and output topics of a chunk's messages, and how many offsets of the log are between it and the one
# before.
_PLACES = st.tuples(st.integers(0, 2_000), st.sampled_from(["a", "b", "c"]))
_CHUNKS = st.lists(st.tuples(st.lists(_PLACES, min_size=1, max_size=12), st.integers(1, 3)), min_size=1, max_size=12)
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "plan", "plan", "plan", "end", "commit", "crash", "shrink", "set back"]),
        st.integers(1, 4),
        st.integers(0, 700),
    ),
    max_size=60,
)
_LIMITS = st.builds(
    Limits,
    st.integers(1, 20),
    st.sampled_from([1, 3_000, 1_000_000]),
    st.sampled_from([1, 20, 500]),
    st.dictionaries(st.sampled_from(["a", "b", None]), st.integers(1, 8)),
)


@dataclass
class _Log:
    """The ready log of one shard, as far as it is written at a time."""

    chunks: list[tuple[int, pa.Table]]
    visible: int = 0

    def record(self, offset: int) -> tuple[bytes, RecordHeaders]:
        return chunk_record(dict(self.chunks)[offset])


@dataclass
class _Release:
    """A release process that may die, and what a subscriber sees."""

    log: _Log
    limits: Limits
    committed: Position = field(default_factory=lambda: Position("id"))
    seen: list[OrderKey] = field(default_factory=list)
    # How much was planned when a message arrived: if it comes before that, it is late.
    planned_below: dict[OrderKey, OrderKey] = field(default_factory=dict)
    max_bytes: int = sys.maxsize
    # How many chunks were read again.
    restored: int = 0
    # How much was seen when the clock was set back.
    set_back_at: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open()

    def open(self, set_back: bool = False) -> None:
        """Begin from the committed position, as after a crash, or since the clock was set back.

        It is set back still as long as nothing is committed since.
        """
        if set_back:
            self.set_back_at.append(len(self.seen))
            self.planned_below.clear()
        is_set_back = self.set_back_at[-1:] == [len(self.seen)]
        self.floor = self.committed.set_back() if is_set_back else self.committed
        self.pending = Pending(self.floor)
        self.pending.max_bytes = self.max_bytes
        self.planned: list[Planned] = []
        self.read = 0
        for offset, _ in self.log.chunks[: self.log.visible]:
            self.read += 1
            if offset >= self.committed.lowest:
                self._add(offset)

    def _add(self, offset: int) -> None:
        value, headers = self.log.record(offset)
        self.pending.add(offset, summary_of(headers, "log"), value)

    def arrive(self, count: int) -> None:
        below = self.pending.position.below
        for offset, table in self.log.chunks[self.log.visible : self.log.visible + count]:
            self.log.visible += 1
            self._add(offset)
            if below is not None:
                for batch in table.to_batches():
                    self.planned_below |= dict.fromkeys(keys_of(batch), below)

    def plan(self, now_ms: int, lead_ms: int) -> bool:
        below = self.pending.position.below
        while True:
            try:
                planned = self.pending.plan(now_ms, now_ms + lead_ms, self.limits)
                break
            except PayloadMissing as missing:
                offsets = missing.offsets
            assert offsets == sorted(set(offsets))
            self.restored += len(offsets)
            for offset in offsets:
                self.pending.restore(offset, self.log.record(offset)[0])
        if planned is not None:
            self.planned.append(planned)
            self._check_limits(planned.messages, is_late=planned.position.below == below)
        return planned is not None

    def come_to_end(self) -> int:
        """Pass the end of the log, if nothing is pending: where the next chunk will be, which others may be before."""
        chunks, visible = self.log.chunks, self.log.visible
        end = chunks[visible][0] if visible < len(chunks) else chunks[-1][0] + 3
        planned = self.pending.past(end)
        if planned is not None:
            assert planned.messages.num_rows == 0
            self.planned.append(planned)
        return end

    def _check_limits(self, planned: pa.Table, is_late: bool) -> None:
        """Only late messages of a single chunk, and those with one key, may be more than a limit allows."""
        topics = planned.column("output_topic")
        limited: list[tuple[pa.Table, int]] = [(planned, self.limits.messages)]
        for topic, most in self.limits.at_once.items():
            limited.append((planned if topic is None else planned.filter(pc.equal(topics, topic)), most))
        for own, most in limited:
            if own.num_rows > most and len({key for part in own.to_batches() for key in keys_of(part)}) > 1:
                offsets = set(own.column("offset").to_pylist())
                assert is_late
                assert any(offsets <= set(chunk.column("offset").to_pylist()) for _, chunk in self.log.chunks)

    def memory_is_bounded(self) -> bool:
        """Return whether what is in memory is within its bound, but for what is in order and one message a chunk."""
        # No message has more.
        least_bytes = sum(table.slice(0, 1).nbytes for _, table in self.log.chunks)
        bound: int = self.pending.max_bytes + self.pending._current.nbytes + least_bytes
        return self.pending.nbytes <= bound

    def commit(self) -> None:
        if self.planned:
            planned = self.planned.pop(0)
            assert planned.position.taken_in >= self.committed.taken_in
            assert planned.position.lowest >= self.committed.lowest
            assert (planned.position.below or OrderKey(-1, "", 0, 0)) >= (self.floor.below or OrderKey(-1, "", 0, 0))
            self.committed = self.floor = planned.position
            for batch in planned.messages.to_batches():
                self.seen += keys_of(batch)


@settings(max_examples=300, deadline=None)
@given(chunks=_CHUNKS, steps=_STEPS, limits=_LIMITS)
def test_each_message_is_released_once_and_in_order_unless_it_arrived_behind(
    chunks: list[tuple[list[tuple[int, str]], int]], steps: list[tuple[str, int, int]], limits: Limits
) -> None:
    tables, offset, row = [], -1, 0
    for places, gap in chunks:
        offset += gap
        rows = [
            {"deliver_at_ms": due, "offset": row + at, "output_topic": topic} for at, (due, topic) in enumerate(places)
        ]
        row += len(places)
        tables.append((offset, in_order(messages(rows))))
    everything = sorted(key for _, table in tables for batch in table.to_batches() for key in keys_of(batch))
    release = _Release(_Log(tables), limits)
    now_ms = 0
    for step, number, ms in steps:
        if step == "arrive":
            release.arrive(number)
        elif step == "plan":
            now_ms += ms
            release.plan(now_ms, number * 25)
        elif step == "end":
            release.come_to_end()
        elif step == "commit":
            release.commit()
        elif step == "crash":
            release.open()
        elif step == "set back":
            now_ms -= 2 * ms
            release.open(set_back=True)
        else:
            release.max_bytes = release.pending.max_bytes = ms * 100
            release.pending.shrink()
            assert release.memory_is_bounded()
        check_accounts(release.pending)
    release.arrive(len(tables))
    while release.plan(5_000, 0):
        pass
    end = release.come_to_end()
    while release.planned:
        release.commit()
    assert sorted(release.seen) == everything
    assert release.committed.lowest == release.committed.taken_in == end > offset
    assert release.pending.position.released == len(everything)
    highest = OrderKey(-1, "", 0, 0)
    for number, key in enumerate(release.seen):
        if number in release.set_back_at:
            highest = OrderKey(-1, "", 0, 0)
        if key < highest:
            assert key < release.planned_below.get(key, OrderKey(-1, "", 0, 0)), (
                "out of order, though it was there in time"
            )
        highest = max(highest, key)


def test_nothing_is_planned_before_it_is_nearly_due() -> None:
    log = _Log([(0, messages([{"deliver_at_ms": 1_000}, {"deliver_at_ms": 1_015, "offset": 1}]))])
    release = _Release(log, Limits(10, 1_000_000, 20))
    release.arrive(1)
    assert release.pending.next_due_ms == 0
    assert not release.plan(800, 100)
    assert release.pending.next_due_ms == 1_000
    assert release.plan(900, 100)
    assert release.planned[0].last_due_ms == 1_015


def test_a_transaction_has_no_more_for_a_topic_than_its_limit() -> None:
    topics = ["b", "a", "b", "a", "b", "a", "a", "b"]
    rows = [{"deliver_at_ms": 1, "offset": number, "output_topic": topic} for number, topic in enumerate(topics)]
    release = _Release(_Log([(0, messages(rows))]), Limits(7, 1_000_000, 20, {"a": 2, "c": 1}))
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
    # Each chunk has three to "a", and three to "b", due before what is released by then.
    late = [
        messages({"deliver_at_ms": 1, "offset": 10 * n + at, "output_topic": "ab"[at % 2]} for at in range(6))
        for n in range(1, 6)
    ]
    release = _Release(_Log(list(enumerate([first, *late]))), Limits(50, 1_000_000, 20, most))
    release.arrive(1)
    assert release.plan(1_000, 0)
    release.arrive(5)
    while release.plan(1_000, 0):
        pass
    assert [planned.messages.num_rows for planned in release.planned] == [1, *together]
    assert [planned.position.taken_in for planned in release.planned][-1] == 6


def test_a_chunk_that_comes_again_is_ignored() -> None:
    log = _Log([(3, messages([{"deliver_at_ms": 1}])), (5, messages([{"deliver_at_ms": 2, "offset": 1}]))])
    release = _Release(log, Limits(10, 1_000_000, 20))
    release.arrive(2)
    for offset in (3, 5):
        release._add(offset)
    assert release.plan(10, 0)
    assert release.planned[0].messages.num_rows == 2
    assert not release.plan(10, 0)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_after_a_crash_none_is_missing_of_messages_that_have_one_key(most: int) -> None:
    # The input topic was made anew, and its messages are due at the same instant as those before.
    rows = [{"deliver_at_ms": 1_000, "offset": offset} for offset in (0, 1, 1, 1, 2, 3, 3)]
    release = _Release(_Log([(0, messages(rows))]), Limits(most, 1_000_000, 20))
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
    log = _Log([(0, opened), (1, to("now", 1_000, 1)), (2, to("later", 50_000, 2)), (3, to("next", 60_000, 3))])
    release = _Release(log, Limits(1, 1_000_000, 20))
    release.arrive(3)
    assert release.plan(1_050, 0)
    release.arrive(1)
    assert release.pending.needs() == {"now": 1, "open": 1, "later": 3, "next": 4}
    release.pending.max_bytes = 0
    release.pending.shrink()
    assert "later" not in release.pending.needs()


@pytest.mark.parametrize("count", [3, 4, 5, 9])
@pytest.mark.parametrize("max_bytes", [2_000, 4_000, 8_000])
def test_messages_with_one_key_are_released_though_memory_is_short(count: int, max_bytes: int) -> None:
    # The input topic was made anew, and its messages are due at the same instant as those before.
    rows = [{"deliver_at_ms": 1_000, "offset": at // 2, "value": bytes(500)} for at in range(2 * count)]
    release = _Release(_Log([(0, messages(rows))]), Limits(1_000, 1_000_000, 20))
    release.max_bytes = release.pending.max_bytes = max_bytes
    release.arrive(1)
    while release.plan(1_000, 0):
        release.commit()
    assert [key.offset for key in release.seen] == [at // 2 for at in range(2 * count)]


_SPREAD_CHUNKS, _SPREAD_MS = 50, 600_000


def _spread_widely() -> _Log:
    """Return a log of chunks of which each has messages of ten minutes: 100 of 1 kB."""
    chance, value = np.random.default_rng(1), bytes(1_000)
    dues = chance.integers(0, _SPREAD_MS, (_SPREAD_CHUNKS, 100))
    rows = [
        [{"deliver_at_ms": due, "offset": 100 * offset + at, "value": value} for at, due in enumerate(own)]
        for offset, own in enumerate(dues.tolist())
    ]
    return _Log([(offset, in_order(messages(own))) for offset, own in enumerate(rows)])


@pytest.mark.parametrize("restarts", [False, True])
def test_chunks_of_which_each_has_messages_of_ten_minutes_keep_within_memory(restarts: bool) -> None:
    release = _Release(_spread_widely(), Limits(1_000, 1_000_000, 20))
    largest = max(table.nbytes for _, table in release.log.chunks)
    total = sum(table.nbytes for _, table in release.log.chunks)
    release.max_bytes = release.pending.max_bytes = 350_000
    release.arrive(len(release.log.chunks))
    for now_ms in range(0, _SPREAD_MS + 2_000, 2_000):
        if restarts and now_ms % 100_000 == 0:
            release.open()
        while release.plan(now_ms, 0):
            release.commit()
            release.pending.shrink()
            assert release.pending.nbytes <= release.max_bytes + release.pending._current.nbytes + largest
    assert len(release.seen) == 100 * _SPREAD_CHUNKS
    assert release.seen == sorted(release.seen)
    # Each chunk has a share of the memory, and is read again for each of these shares.
    assert release.restored <= 8 * _SPREAD_CHUNKS * total / release.max_bytes
