"""Recalling staged messages, in the core of the release stage: random logs, requests, crashes and memory.

A message may lie in the near log, written before the request for it, and be read after the request.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.internal_topics.position import Log, Place, Position
from sinks.ready_log.chunk import RecordHeaders, chunk_record, most_deliveries, summary_of, with_few_deliveries
from sinks.release.encoded_chunks import PayloadMissing
from sinks.release.pending import Pending
from sinks.release.planned import Planned
from sinks.release.recall import uncounted
from sinks.release.recently_released import RecentlyReleased
from sinks.release.removals import REMEMBERED_MS
from sinks.release.room import Limits
from state.answers import OLD_MS, Undecided
from state.kinds import ANSWER, DUE_NOW, MESSAGE, REQUEST
from state.message import decode_chunk
from state.order import in_order
from tests.messages import messages
from tests.sinks.release.accounts import check_accounts
from tests.thorough import examples


def _replaces(offset: int) -> bool:
    """Return whether the request at `offset` belongs to a message that takes the place of another."""
    return bool(offset % 2)


_START_MS = 1_000_000_000
# A chunk of messages by their due times, in either log; or of requests for messages by number, mostly earlier ones.
_CHUNK = st.one_of(
    st.tuples(st.sampled_from(["messages", "near"]), st.lists(st.integers(0, 2_000), min_size=1, max_size=8)),
    st.lists(st.integers(0, 30), min_size=1, max_size=5).map(lambda asked: ("requests", asked)),
)
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["arrive", "arrive", "read near", "plan", "plan", "plan", "commit", "crash", "shrink", "set back"]
        ),
        st.integers(1, 3),
        st.integers(0, 500),
    ),
    max_size=60,
)
_LIMITS = st.builds(Limits, st.integers(1, 20), st.sampled_from([1, 3_000, 1_000_000]), st.sampled_from([1, 20, 500]))


@dataclass
class _Shard:
    """One of `shards` shards: its logs, a release process that may die, and its committed position.

    The near log is read as far as `near_read`: an open transaction hides what follows.
    """

    limits: Limits
    shards: int
    logs: dict[Log, list[tuple[bytes, RecordHeaders]]] = field(default_factory=lambda: {log: [] for log in Log})
    near_read: int = 0
    committed: Position = field(default_factory=Position)
    now_ms: int = _START_MS
    max_bytes: int = sys.maxsize
    # How many released messages the process knows still.
    remembered: int = 10
    # How many chunks were read again.
    restored: int = 0
    messages: int = 0
    requests: int = 0
    seen: Counter[int] = field(default_factory=Counter)
    # The results for each message, and how often each request was answered or passed on.
    results: dict[int, set[str]] = field(default_factory=dict)
    reasons: dict[int, str | None] = field(default_factory=dict)
    outputs: dict[int, dict[str, Any]] = field(default_factory=dict)
    settled: Counter[int] = field(default_factory=Counter)
    passed_on: list[pa.Table] = field(default_factory=list)
    # The messages that the recalled topic has.
    recorded: set[int] = field(default_factory=set)
    # The due time of each message when it was staged, and the messages that have come out as due sooner.
    dues: dict[int, int] = field(default_factory=dict)
    sooner: set[int] = field(default_factory=set)
    # The requests that want their message to be due at once.
    delivering: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        below = self.committed.below
        is_ahead = below is not None and below.deliver_at_ms > self.now_ms
        position = self.committed.set_back() if is_ahead else self.committed
        self.recently = RecentlyReleased(most=self.remembered)
        self.pending = Pending(position, self.now_ms, self.recently.find)
        self.pending.merge.max_bytes = self.max_bytes
        self.planned: list[Planned] = []
        for log, end in ((Log.READY, len(self.logs[Log.READY])), (Log.NEAR, self.near_read)):
            for offset in range(self.committed.of(log).lowest, end):
                self._add(Place(log, offset))

    def _add(self, place: Place) -> None:
        value, headers = self.logs[place.log][place.offset]
        self.pending.add(place, summary_of(headers, "log"), value)

    def read_near(self, count: int) -> None:
        for offset in range(self.near_read, min(self.near_read + count, len(self.logs[Log.NEAR]))):
            self._add(Place(Log.NEAR, offset))
            self.near_read = offset + 1

    def arrive(self, kind: str, numbers: list[int], asked_ms: int | None = None, delivers: Sequence[bool] = ()) -> None:
        """Add a chunk: messages that are due at `numbers`, or requests for these, some of them to be due at once."""
        if kind != "requests":
            rows: list[dict[str, Any]] = [
                {"deliver_at_ms": _START_MS + due, "offset": self.messages + at} for at, due in enumerate(numbers)
            ]
            self.dues |= {row["offset"]: row["deliver_at_ms"] for row in rows}
            self.messages += len(rows)
        else:
            # The job itself answers requests for messages that it knows to be cancelled.
            asked = [each for each in numbers if "cancelled" not in self.results.get(each, ())]
            # All staged messages are due before 2,001.
            since_ms = self.now_ms if asked_ms is None else asked_ms
            undecided = Undecided(_START_MS + 2_001, since_ms, self.shards, self.shards - 1)
            self.delivering |= {
                1_000 + self.requests + at for at, (_, now) in enumerate(zip(asked, delivers, strict=False)) if now
            }
            # Every other request comes with a message.
            rows = [
                {"deliver_at_ms": self.now_ms, "offset": own, "kind": REQUEST, "key": b"delayline-in/0/%d" % each,
                 "value": undecided._replace(
                     replaces=_replaces(own) and own not in self.delivering, delivers=own in self.delivering
                 ).to_bytes()}
                for own, each in enumerate(asked, 1_000 + self.requests)
            ]  # fmt: skip
            self.requests += len(rows)
        if rows:
            self.receive(in_order(messages(rows)), Log.NEAR if kind == "near" else Log.READY)

    def receive(self, chunk: pa.Table, log: Log = Log.READY) -> None:
        self.logs[log].append(chunk_record(chunk))
        if log is Log.READY:
            self._add(Place(log, len(self.logs[log]) - 1))

    def plan(self, lead_ms: int) -> bool:
        # Known ids come some at a time.
        for _ in range(200):
            try:
                planned = self.pending.plan(self.now_ms, self.now_ms + lead_ms, self.limits)
            except PayloadMissing as missing:
                self.restored += len(missing.places)
                for place in missing.places:
                    self.pending.merge.chunks.restore(place, self.logs[place.log][place.offset][0])
                continue
            if planned is None and self.pending.incoming.needs_near_end:
                self.pending.incoming.learn_near_end(len(self.logs[Log.NEAR]), self.pending.incoming.ends[Log.READY])
                continue
            if planned is not None:
                self.planned.append(planned)
            return planned is not None
        raise AssertionError("planning does not come to an end")

    def commit(self) -> None:
        if not self.planned:
            return
        planned = self.planned.pop(0)
        for log in Log:
            assert planned.position.of(log).taken_in >= self.committed.of(log).taken_in
            assert planned.position.of(log).lowest >= self.committed.of(log).lowest
        assert planned.position.released >= self.committed.released
        assert planned.position.mark != self.committed.mark
        self.committed = planned.position
        if planned.messages.num_rows:
            self.recently.add(planned.messages, {}, {}, self.now_ms)
        self.recorded |= {at for each in planned.recalled for own in each.ids.values() for at in own.tolist()}
        comes_out = set()
        for row in planned.messages.to_pylist():
            assert row["kind"] != REQUEST
            if row["kind"] == ANSWER:
                self.settled[row["offset"]] += 1
                answer = json.loads(row["value"])
                asked = int(answer["id"].rsplit("/", 1)[1])
                self.results.setdefault(asked, set()).add(answer["result"])
                self.reasons[asked] = answer["reason"]
                delivers = row["offset"] in self.delivering
                assert answer["result"] != "due-now" or (asked < self.messages and delivers)
                if answer["result"] in ("too-late", "due-now") and asked < self.messages:
                    comes_out.add(asked)
                if "output" in answer:
                    self.outputs[asked] = answer["output"]
                    assert self.seen[asked] == 1
                    assert answer["result"] == "too-late"
                recalled = "already-cancelled" if delivers else "recalled"
                assert (answer["result"] == "cancelled") == (answer["reason"] == recalled)
                assert answer["result"] != "cancelled" or asked in self.recorded
                of_message = {"replacement": f"delayline-in/0/{row['offset']}", "accepted": True}
                of_one = _replaces(row["offset"]) and not delivers
                assert answer.items() >= of_message.items() if of_one else "accepted" not in answer
            else:
                self.seen[row["offset"]] += 1
                due_ms = self.dues.get(row["offset"], row["deliver_at_ms"])
                assert row["deliver_at_ms"] <= due_ms
                if row["deliver_at_ms"] < due_ms:
                    self.sooner.add(row["offset"])
        assert all(self.seen[asked] == 1 for asked in comes_out)
        assert all("due-now" in self.results[each] for each in self.sooner)
        if planned.passed_on is not None:
            self.passed_on.append(planned.passed_on)
            self.settled.update(planned.passed_on.column("offset").to_pylist())

    def finish(self) -> None:
        self.read_near(len(self.logs[Log.NEAR]))
        for _ in range(3):
            self.now_ms += 2 * REMEMBERED_MS
            self.settle()

    def settle(self) -> None:
        while self.plan(0):
            pass
        while self.planned:
            self.commit()


@settings(max_examples=examples(200), deadline=None)
@given(chunks=st.lists(_CHUNK, min_size=1, max_size=14), steps=_STEPS, limits=_LIMITS, shards=st.integers(1, 2))
def test_each_request_gets_one_answer_which_agrees_with_what_happens(
    chunks: list[tuple[str, list[int]]], steps: list[tuple[str, int, int]], limits: Limits, shards: int
) -> None:
    shard, coming = _Shard(limits, shards), list(chunks)

    def arrive() -> None:
        kind, numbers = coming.pop(0)
        # A request comes after its message.
        asked = [each if kind != "requests" or each < shard.messages else 500 + each for each in numbers]
        shard.arrive(kind, asked, delivers=[each % 3 == 1 for each in numbers] if kind == "requests" else ())

    for step, number, ms in steps:
        if step == "arrive" and coming:
            arrive()
        elif step == "read near":
            shard.read_near(number)
        elif step == "plan":
            shard.now_ms += ms
            shard.plan(number * 25)
        elif step == "commit":
            shard.commit()
        elif step == "crash":
            shard.open()
        elif step == "shrink":
            # So that open chunks are put back, some in the middle.
            shard.max_bytes = shard.pending.merge.max_bytes = ms * 20
            shard.pending.merge.shrink()
        elif step == "set back":
            shard.now_ms -= 2 * ms
            shard.open()
        check_accounts(shard.pending)
    while coming:
        arrive()
    shard.finish()
    assert shard.settled == Counter(range(1_000, 1_000 + shard.requests))
    cancelled = {each for each, results in shard.results.items() if "cancelled" in results}
    assert shard.recorded == cancelled
    assert shard.seen == Counter(set(range(shard.messages)) - cancelled)
    assert not any(shard.results[each] & {"too-late", "due-now"} for each in cancelled)
    assert shards == 2 or not shard.passed_on
    # The logs are done with, and all staged messages count as released.
    for log, records in shard.logs.items():
        assert shard.pending.position.of(log).lowest == shard.pending.position.of(log).taken_in == len(records)
    assert shard.pending.position.released == shard.messages + shard.requests


def _two_shards() -> tuple[_Shard, _Shard]:
    limits = Limits(100, 1_000_000, 20)
    return _Shard(limits, 2), _Shard(limits, 2)


def test_an_ask_goes_on_to_the_shard_that_has_the_message_and_is_answered_there() -> None:
    first, second = _two_shards()
    second.arrive("messages", [500, 600])
    first.arrive("requests", [1])
    first.settle()
    second.receive(first.passed_on[0])
    second.settle()
    assert second.results == {1: {"cancelled"}}
    second.now_ms += 1_000
    second.settle()
    assert second.seen == Counter([0])
    # Each request counts where it was staged.
    assert (first.committed.released, second.committed.released) == (1, 2)


def test_asks_wait_for_what_the_near_log_had_when_they_were_read_and_no_other_message_does() -> None:
    shard = _Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive("near", [500])
    shard.arrive("messages", [0])
    shard.arrive("requests", [0])
    shard.arrive("messages", [10])
    shard.arrive("near", [600])
    shard.settle()
    assert (shard.seen, shard.results) == (Counter([1]), {})
    # Nothing to plan, and not all is done.
    assert shard.pending.next_due_ms is None
    assert not shard.pending.merge.is_empty
    shard.read_near(1)
    shard.settle()
    assert not shard.results
    shard.arrive("near", [1])
    shard.read_near(1)
    shard.settle()
    assert shard.results == {0: {"cancelled"}}
    shard.now_ms += 700
    shard.settle()
    assert shard.seen == Counter([1, 2, 3])


def test_what_was_read_of_the_near_log_is_taken_in_before_asks_that_are_due_earlier() -> None:
    shard = _Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive("near", [500])
    shard.arrive("requests", [0])
    shard.settle()
    shard.read_near(1)
    shard.settle()
    assert shard.results == {0: {"cancelled"}}


def test_messages_of_the_near_log_do_not_wait_until_the_ids_of_all_chunks_are_known_for_an_ask() -> None:
    shard = _Shard(Limits(100, 1_000_000, 20), 1)
    for at in range(60):
        shard.arrive("messages", [1_000 + at])
    shard.arrive("requests", [4])
    shard.now_ms += 100
    assert not shard.plan(0)
    shard.arrive("near", [50])
    shard.read_near(1)
    assert shard.plan(0)
    shard.commit()
    assert (shard.seen, shard.results) == (Counter([60]), {})


def test_the_last_shard_answers_what_no_shard_has() -> None:
    first, second = _two_shards()
    first.arrive("requests", [7])
    first.settle()
    second.receive(first.passed_on[0])
    second.settle()
    assert second.results == {7: {"too-late"}}
    assert not second.passed_on


def test_a_shard_that_has_released_the_message_answers_at_once_and_says_where_it_went() -> None:
    first, second = _two_shards()
    first.arrive("messages", [0, 0])
    first.settle()
    first.arrive("requests", [1])
    first.settle()
    assert first.results == {1: {"too-late"}}
    assert first.outputs == {1: {"topic": "delayline-out", "partition": 0}}
    assert not first.passed_on
    assert first.committed.released == 3
    # Another process does not know it.
    first.open()
    first.arrive("requests", [0])
    first.settle()
    assert len(first.passed_on) == 1
    assert not second.results


def test_after_a_crash_of_a_shard_on_its_way_an_ask_that_is_not_found_is_not_too_late_for_certain() -> None:
    first, second = _two_shards()
    first.arrive("requests", [7])
    first.now_ms += 1
    first.open()
    first.settle()
    second.receive(first.passed_on[0])
    second.settle()
    assert second.results == {7: {"unknown"}}


def test_a_message_whose_record_is_deleted_is_taken_out_too_and_else_not_known() -> None:
    first, second = _two_shards()
    second.arrive("messages", [500, 600])
    first.arrive("requests", [1, 7], asked_ms=OLD_MS)
    first.settle()
    second.receive(first.passed_on[0])
    second.settle()
    assert second.results == {1: {"cancelled"}, 7: {"unknown"}}
    assert second.reasons[7] == "record-deleted"


@pytest.mark.parametrize("chunks", [5, 60])
def test_chunks_that_cannot_have_the_message_are_not_searched_for_it(searched: list[int], chunks: int) -> None:
    shard = _Shard(Limits(100, 1_000_000, 20), 1)
    for at in range(chunks):
        shard.arrive("messages", [1_000 + at, 1_000 + at])
    shard.arrive("requests", [4, 5_000])
    # Nothing is due, and the ids of some chunks become known each time.
    while not shard.results:
        shard.settle()
    assert shard.results == {4: {"cancelled"}, 5_000: {"too-late"}}
    # The search was in the ids of the one chunk.
    assert searched == [2]


def test_dead_letters_and_asks_are_not_taken_out() -> None:
    shard, far_ms = _Shard(Limits(100, 1_000_000, 20), 1), _START_MS + 300
    shard.receive(
        messages(
            [
                {"offset": 1, "error_code": "bad", "output_topic": "delayline-dead-letter", "deliver_at_ms": far_ms},
                {"offset": 2, "value": b'{"id": "in/0/2"}', "kind": ANSWER, "deliver_at_ms": far_ms},
            ]
        )
    )
    shard.arrive("requests", [1, 2])
    shard.settle()
    assert shard.results == {1: {"too-late"}, 2: {"too-late"}}


def test_what_is_left_in_a_log_does_not_count_asks_of_other_shards_and_those_that_are_done() -> None:
    first, second = _two_shards()
    first.arrive("requests", [7, 8])
    own = messages([{"offset": 3, "kind": ANSWER, "value": b'{"id": "in/0/2"}'}])
    requests = decode_chunk(first.logs[Log.READY][0][0])
    assert [uncounted(table, taken_in=False) for table in (requests, own)] == [0, 0]
    assert uncounted(requests, taken_in=True) == 2
    first.settle()
    assert uncounted(first.passed_on[0], taken_in=False) == 2
    assert second.committed.released == 0


def test_where_memory_is_short_the_ids_of_what_is_put_back_to_wait_are_not_read_again() -> None:
    shard = _Shard(Limits(1_000, 1_000_000, 20), 1)
    for number in range(40):
        shard.arrive("messages", [(number * 7 + at * 50) % 2_000 for at in range(40)])
    shard.max_bytes = shard.pending.merge.max_bytes = 60_000
    shard.pending.merge.shrink()
    shard.arrive("requests", [1_599])
    shard.settle()
    # Each chunk has been looked at now.
    assert shard.restored > 0
    for _ in range(10):
        shard.now_ms += 100
        shard.settle()
        shard.pending.merge.shrink()
        restored = shard.restored
        shard.arrive("requests", [1_500 + shard.requests])
        shard.settle()
        assert shard.restored == restored
    assert any(len(chunk.ids or ()) > 1 for chunk in shard.pending.merge.chunks.waiting)


def test_what_was_taken_out_is_remembered_however_long_a_broker_does_not_answer() -> None:
    shard = _Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive("messages", [500, 600])
    shard.arrive("requests", [0])
    shard.settle()
    # Nothing is planned meanwhile, and the job may not have read the recalled message.
    shard.now_ms += 3 * REMEMBERED_MS
    shard.plan(0)
    shard.commit()
    shard.results.clear()
    shard.arrive("requests", [0])
    shard.settle()
    assert shard.results == {0: {"cancelled"}}


def _due_of(shard: _Shard, planned: Planned) -> dict[int, int]:
    return {
        row["offset"]: row["deliver_at_ms"] - _START_MS
        for row in planned.messages.to_pylist()
        if row["offset"] < shard.messages
    }


@pytest.mark.parametrize("log", ["messages", "near"])
def test_a_message_that_shall_be_due_now_comes_out_with_the_answer_and_once(log: str) -> None:
    shard = _Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive(log, [0, 500, 600, 1_999])
    shard.read_near(1)
    shard.settle()
    shard.now_ms += 100
    shard.arrive("requests", [1, 3], delivers=[True, True])
    # The next process plans again whatever was planned and not committed.
    assert shard.plan(0)
    shard.open()
    assert shard.plan(0)
    assert _due_of(shard, shard.planned[0]) == {1: 100, 3: 100}
    assert not shard.planned[0].recalled
    shard.commit()
    assert shard.results == {1: {"due-now"}, 3: {"due-now"}}
    assert shard.committed.released == 5
    shard.open()
    shard.now_ms += 2_000
    shard.settle()
    assert shard.seen == Counter([0, 1, 2, 3])
    assert not shard.recorded


def test_a_message_that_shall_be_due_now_is_due_when_it_is_asked_for_or_sooner_and_never_expires() -> None:
    shard = _Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive("messages", [400, 500, 900])
    shard.now_ms += 450
    shard.arrive("requests", [2, 0], delivers=[True, True])
    shard.pending.incoming.learn_near_end(0, shard.pending.incoming.ends[Log.READY])
    shard.plan(0)
    # Whatever is overdue, or an old answer in the log behind it.
    assert _due_of(shard, shard.planned[0]) == {2: 450, 0: 400}
    own = [row for row in shard.planned[0].messages.to_pylist() if row["offset"] in (0, 2)]
    assert [row["kind"] for row in own] == [DUE_NOW] * 2
    shard.settle()
    shard.now_ms += 500
    shard.settle()
    assert shard.seen == Counter([0, 1, 2])


def test_answers_do_not_wait_for_the_clock_of_the_job_which_is_ahead() -> None:
    shard = _Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive("messages", [60_000, 60_000])
    shard.now_ms += 30_000
    shard.arrive("requests", [0, 1], delivers=[False, True])
    shard.now_ms -= 30_000
    shard.pending.incoming.learn_near_end(0, shard.pending.incoming.ends[Log.READY])
    assert shard.plan(0)
    assert shard.planned[0].last_due_ms == shard.now_ms
    shard.commit()
    assert shard.results == {0: {"cancelled"}, 1: {"due-now"}}


def test_two_messages_of_one_id_both_come_out_now_and_the_shard_goes_on() -> None:
    shard = _Shard(Limits(100, 1_000_000, 20), 1)
    # The input topic was created again, and two messages of one id are due at the same time.
    shard.arrive("messages", [500, 700])
    shard.messages = 0
    shard.arrive("messages", [500, 900])
    shard.messages = 0
    shard.arrive("messages", [800, 950])
    shard.max_bytes = shard.pending.merge.max_bytes = 1
    shard.arrive("requests", [0], delivers=[True])
    shard.pending.incoming.learn_near_end(0, shard.pending.incoming.ends[Log.READY])
    while not shard.planned:
        shard.pending.merge.shrink()
        shard.plan(0)
    rows = shard.planned[0].messages.to_pylist()
    assert [row["offset"] for row in rows if row["kind"] == DUE_NOW] == [0] * 3
    shard.now_ms += 1_000
    while not shard.pending.merge.is_empty:
        shard.pending.merge.shrink()
        shard.plan(0)
    later = pa.concat_tables(each.messages for each in shard.planned[1:])
    assert later.column("offset").to_pylist() == [1] * 3


@pytest.mark.parametrize("log", ["messages", "near"])
@pytest.mark.parametrize("is_short", [False, True], ids=["in memory", "read again"])
@pytest.mark.parametrize("crashes", [False, True])
def test_what_is_taken_out_is_not_a_later_message_with_its_id(log: str, is_short: bool, crashes: bool) -> None:
    shard = _Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive(log, [500, 600])
    shard.read_near(1)
    shard.arrive("requests", [0])
    shard.settle()
    assert shard.results == {0: {"cancelled"}}
    if crashes:
        shard.open()
    # The input topic was created again.
    shard.messages = 0
    shard.arrive(log, [700])
    shard.read_near(1)
    if is_short:
        shard.plan(0)
        shard.max_bytes = shard.pending.merge.max_bytes = 1
        shard.pending.merge.shrink()
    for _ in range(10):
        shard.now_ms += 100
        shard.settle()
    assert shard.seen == Counter([0, 1])
    assert shard.pending.merge.is_empty
    assert bool(shard.restored) == is_short


@pytest.mark.parametrize(
    ("message_bytes", "counts"),
    [(1, [8, 8, 4]), (1_048_588, [8, 8, 4]), (3_000_000, [3] * 6 + [2]), (64 * 1024 * 1024, [1] * 20)],
)
def test_a_chunk_has_few_requests_for_messages_to_be_due_now_so_that_these_have_room(
    message_bytes: int, counts: list[int]
) -> None:
    most = most_deliveries(message_bytes)
    delivers, cancels = (Undecided(1, 1, 1, 0, delivers=each).to_bytes() for each in (True, False))
    kinds = [MESSAGE, REQUEST, REQUEST, ANSWER] * 20
    values = [b"v", cancels, delivers, b"{}"] * 20
    every = messages({"offset": at, "kind": kind, "value": values[at]} for at, kind in enumerate(kinds))
    pieces = list(with_few_deliveries(every, most))
    assert [row["offset"] for piece in pieces for row in piece.to_pylist()] == list(range(80))
    assert [piece.column("value").to_pylist().count(delivers) for piece in pieces] == counts
    others = messages({"offset": at, "kind": REQUEST, "value": cancels} for at in range(80))
    assert [piece.num_rows for piece in with_few_deliveries(others, most)] == [80]
    assert [piece.num_rows for piece in with_few_deliveries(messages([{"offset": 1}]), most)] == [1]


def test_of_several_asks_in_a_chunk_the_first_decides_and_the_others_are_told_what_is_true() -> None:
    shard = _Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive("messages", [500, 600])
    shard.arrive("requests", [0, 0, 0, 1, 1], delivers=[True, False, True, False, True])
    shard.settle()
    assert shard.results == {0: {"due-now", "too-late"}, 1: {"cancelled"}}
    assert shard.seen == Counter([0])
    # The process knows it, also when it is asked again.
    shard.arrive("requests", [0, 0], delivers=[True, False])
    shard.settle()
    assert shard.results[0] == {"due-now", "too-late"}
    shard.now_ms += 2 * REMEMBERED_MS
    shard.settle()
    assert shard.recorded == {1}


def test_a_message_that_shall_be_due_now_is_found_by_the_shard_that_has_it() -> None:
    first, second = _two_shards()
    second.arrive("messages", [500, 600])
    second.now_ms += 50
    first.arrive("requests", [1], delivers=[True])
    first.settle()
    second.delivering = first.delivering
    second.receive(first.passed_on[0])
    second.settle()
    assert second.results == {1: {"due-now"}}
    assert second.seen == Counter([1])
    assert (first.committed.released, second.committed.released) == (1, 1)


def test_messages_whose_chunks_are_not_in_memory_come_out_now_some_at_a_time() -> None:
    shard = _Shard(Limits(1_000, 1_000_000, 20), 1)
    for at in range(30):
        shard.arrive("messages", [1_000 + at, 1_900])
    shard.plan(0)
    shard.max_bytes = shard.pending.merge.max_bytes = 1
    shard.pending.merge.shrink()
    shard.now_ms += 10
    shard.arrive("requests", [0, 20, 59], delivers=[True] * 3)
    while not shard.results:
        shard.pending.merge.shrink()
        shard.settle()
    assert shard.restored >= 3
    assert shard.results == {each: {"due-now"} for each in (0, 20, 59)}
    assert shard.seen == Counter([0, 20, 59])
    shard.finish()
    assert shard.seen == Counter(range(60))
