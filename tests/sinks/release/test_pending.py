"""The core of the release stage against a sorted list: random chunks in two logs, arrivals, crashes and memory."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.internal_topics.position import Log, Place, Position
from sinks.ready_log.chunk import RecordHeaders, chunk_record, summary_of
from sinks.release.encoded_chunks import PayloadMissing
from sinks.release.pending import Pending
from sinks.release.planned import Planned
from sinks.release.rate_limiter import Rated
from sinks.release.room import Limits
from state.order import OrderKey, in_order, keys_of
from tests.messages import messages
from tests.sinks.release.accounts import check_accounts
from tests.thorough import examples

# The due times and output topics of a chunk's messages, its log, and how many offsets are between it and the one before
# there.
_PLACES = st.tuples(st.integers(0, 2_000), st.sampled_from(["a", "b", "c"]))
_CHUNK = st.tuples(st.lists(_PLACES, min_size=1, max_size=12), st.sampled_from(Log), st.integers(1, 3))
_CHUNKS = st.lists(_CHUNK, min_size=1, max_size=12)
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
class _Logs:
    """The logs of one shard, as far as they are written at a time: their chunks in the order in which they come."""

    chunks: list[tuple[Place, pa.Table]]
    visible: int = 0

    @classmethod
    def of(cls, tables: Iterable[tuple[int, pa.Table]]) -> _Logs:
        """Return chunks of the ready log at these offsets."""
        return cls([(Place(Log.READY, offset), table) for offset, table in tables])

    def record(self, place: Place) -> tuple[bytes, RecordHeaders]:
        return chunk_record(dict(self.chunks)[place])

    def ends(self, after: int = 1) -> dict[Log, int]:
        """Return the visible end of each log: where the next chunk is, or `after` its last one."""
        ends = {}
        for log in Log:
            seen = [place.offset for place, _ in self.chunks[: self.visible] if place.log is log]
            coming = [place.offset for place, _ in self.chunks[self.visible :] if place.log is log]
            ends[log] = coming[0] if coming else seen[-1] + after if seen else 0
        return ends


@dataclass
class _Release:
    """A release process that may die, and what a subscriber sees."""

    logs: _Logs
    limits: Limits
    committed: Position = field(default_factory=Position)
    seen: list[OrderKey] = field(default_factory=list)
    # The last planned message when a message arrived. A message that comes before that is late.
    planned_below: dict[OrderKey, OrderKey] = field(default_factory=dict)
    max_bytes: int = sys.maxsize
    # How many chunks were read again.
    restored: int = 0
    # How much was seen when the clock was set back.
    set_back_at: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open()

    def open(self, set_back: bool = False, first: Log = Log.READY) -> None:
        """Begin from the committed position, as after a crash, or since the clock was set back; read one log `first`.

        It is set back still as long as nothing is committed since.
        """
        if set_back:
            self.set_back_at.append(len(self.seen))
            self.planned_below.clear()
        is_set_back = self.set_back_at[-1:] == [len(self.seen)]
        self.floor = self.committed.set_back() if is_set_back else self.committed
        self.pending = Pending(self.floor)
        self.pending.merge.max_bytes = self.max_bytes
        self.planned: list[Planned] = []
        there = [place for place, _ in self.logs.chunks[: self.logs.visible]]
        for place in sorted(there, key=lambda each: each.log is not first):
            if place.offset >= self.committed.of(place.log).lowest:
                self._add(place)

    def _add(self, place: Place) -> None:
        value, headers = self.logs.record(place)
        self.pending.add(place, summary_of(headers, "log"), value)

    def arrive(self, count: int) -> None:
        below = self.pending.position.below
        for place, table in self.logs.chunks[self.logs.visible : self.logs.visible + count]:
            self.logs.visible += 1
            self._add(place)
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
                places = missing.places
            assert places == sorted(set(places))
            self.restored += len(places)
            for place in places:
                self.pending.merge.chunks.restore(place, self.logs.record(place)[0])
        if planned is not None:
            self.planned.append(planned)
            self._check_limits(planned.messages, is_late=planned.position.below == below)
        return planned is not None

    def come_to_end(self) -> dict[Log, int]:
        """Pass the ends of the logs, if nothing is pending, up to where the next chunks will be after other records."""
        ends = self.logs.ends(after=3)
        self.pending.incoming.reach(ends)
        planned = self.pending.past()
        if planned is not None:
            assert planned.messages.num_rows == 0
            self.planned.append(planned)
        return ends

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
                assert any(offsets <= set(chunk.column("offset").to_pylist()) for _, chunk in self.logs.chunks)

    def memory_is_bounded(self) -> bool:
        """Return whether memory is within its bound, apart from the messages in order and one message of each chunk."""
        # No message has more.
        least_bytes = sum(table.slice(0, 1).nbytes for _, table in self.logs.chunks)
        bound: int = self.pending.merge.max_bytes + self.pending.merge.current.nbytes + least_bytes
        return self.pending.merge.nbytes <= bound

    def commit(self) -> None:
        if self.planned:
            planned = self.planned.pop(0)
            for log in Log:
                own, before = planned.position.of(log), self.committed.of(log)
                assert own.taken_in >= before.taken_in
                assert own.lowest >= before.lowest
            assert (planned.position.below or OrderKey(-1, "", 0, 0)) >= (self.floor.below or OrderKey(-1, "", 0, 0))
            self.committed = self.floor = planned.position
            for batch in planned.messages.to_batches():
                self.seen += keys_of(batch)


@settings(max_examples=examples(300), deadline=None)
@given(chunks=_CHUNKS, steps=_STEPS, limits=_LIMITS)
def test_each_message_is_released_once_and_in_order_unless_it_arrived_behind(
    chunks: list[tuple[list[tuple[int, str]], Log, int]], steps: list[tuple[str, int, int]], limits: Limits
) -> None:
    tables, offsets, row = [], dict.fromkeys(Log, -1), 0
    for places, log, gap in chunks:
        offsets[log] += gap
        rows = [
            {"deliver_at_ms": due, "offset": row + at, "output_topic": topic} for at, (due, topic) in enumerate(places)
        ]
        row += len(places)
        tables.append((Place(log, offsets[log]), in_order(messages(rows))))
    everything = sorted(key for _, table in tables for batch in table.to_batches() for key in keys_of(batch))
    release = _Release(_Logs(tables), limits)
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
            release.open(first=[*Log][number % 2])
        elif step == "set back":
            now_ms -= 2 * ms
            release.open(set_back=True)
        else:
            release.max_bytes = release.pending.merge.max_bytes = ms * 100
            release.pending.merge.shrink()
            assert release.memory_is_bounded()
        check_accounts(release.pending)
    release.arrive(len(tables))
    while release.plan(5_000, 0):
        pass
    ends = release.come_to_end()
    while release.planned:
        release.commit()
    assert sorted(release.seen) == everything
    for log, end in ends.items():
        own = release.committed.of(log)
        assert own.lowest == own.taken_in == end > offsets[log]
    assert release.pending.position.released == len(everything)
    assert release.pending.position.forwarded == sum(len(places) for places, log, _ in chunks if log is Log.NEAR)
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
    logs = _Logs.of([(0, messages([{"deliver_at_ms": 1_000}, {"deliver_at_ms": 1_015, "offset": 1}]))])
    release = _Release(logs, Limits(10, 1_000_000, 20))
    release.arrive(1)
    assert release.pending.next_due_ms == 0
    assert not release.plan(800, 100)
    assert release.pending.next_due_ms == 1_000
    assert release.plan(900, 100)
    assert release.planned[0].last_due_ms == 1_015


def test_a_transaction_has_no_more_for_a_topic_than_its_limit() -> None:
    topics = ["b", "a", "b", "a", "b", "a", "a", "b"]
    rows = [{"deliver_at_ms": 1, "offset": number, "output_topic": topic} for number, topic in enumerate(topics)]
    release = _Release(_Logs.of([(0, messages(rows))]), Limits(7, 1_000_000, 20, {"a": 2, "c": 1}))
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
    release = _Release(_Logs.of(list(enumerate([first, *late]))), Limits(50, 1_000_000, 20, most))
    release.arrive(1)
    assert release.plan(1_000, 0)
    release.arrive(5)
    while release.plan(1_000, 0):
        pass
    assert [planned.messages.num_rows for planned in release.planned] == [1, *together]
    assert release.planned[-1].position.ready.taken_in == 6


def test_a_chunk_that_comes_again_is_ignored() -> None:
    logs = _Logs.of([(3, messages([{"deliver_at_ms": 1}])), (5, messages([{"deliver_at_ms": 2, "offset": 1}]))])
    release = _Release(logs, Limits(10, 1_000_000, 20))
    release.arrive(2)
    for offset in (3, 5):
        release._add(Place(Log.READY, offset))
    assert release.plan(10, 0)
    assert release.planned[0].messages.num_rows == 2
    assert not release.plan(10, 0)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_after_a_crash_none_is_missing_of_messages_that_have_one_key(most: int) -> None:
    # The input topic was created again, and its messages are due at the same instant as the messages before.
    rows = [{"deliver_at_ms": 1_000, "offset": offset} for offset in (0, 1, 1, 1, 2, 3, 3)]
    release = _Release(_Logs.of([(0, messages(rows))]), Limits(most, 1_000_000, 20))
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
    logs = _Logs.of([(0, opened), (1, to("now", 1_000, 1)), (2, to("later", 50_000, 2)), (3, to("next", 60_000, 3))])
    release = _Release(logs, Limits(1, 1_000_000, 20))
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
    release = _Release(_Logs.of([(0, messages(rows))]), Limits(1_000, 1_000_000, 20))
    release.max_bytes = release.pending.merge.max_bytes = max_bytes
    release.arrive(1)
    while release.plan(1_000, 0):
        release.commit()
    assert [key.offset for key in release.seen] == [at // 2 for at in range(2 * count)]


_SPREAD_CHUNKS, _SPREAD_MS = 25, 600_000


def _spread_widely() -> _Logs:
    """Return a log of chunks, each with messages of ten minutes: 100 of 1 kB."""
    chance, value = np.random.default_rng(1), bytes(1_000)
    dues = chance.integers(0, _SPREAD_MS, (_SPREAD_CHUNKS, 100))
    rows = [
        [{"deliver_at_ms": due, "offset": 100 * offset + at, "value": value} for at, due in enumerate(own)]
        for offset, own in enumerate(dues.tolist())
    ]
    return _Logs.of((offset, in_order(messages(own))) for offset, own in enumerate(rows))


@pytest.mark.parametrize("restarts", [False, True])
def test_chunks_of_which_each_has_messages_of_ten_minutes_keep_within_memory(restarts: bool) -> None:
    release = _Release(_spread_widely(), Limits(1_000, 1_000_000, 20))
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
