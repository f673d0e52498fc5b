"""Whole batches of requests against a model: each message either comes out or is cancelled, and all answers agree.

Records become messages and requests as in the job, go through the state stage, and the desk decides. Its decision is
stored, staged and released here. The table is in memory, and in the last tests it is the real one.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from conf.settings import Settings
from sources.intake.accept import accept
from sources.intake.accepted import Accepted
from sources.intake.request_grouping import RequestGrouping
from state.answers import Undecided, answered
from state.buckets.cancelled import NEVER_MS, cancelled_rows
from state.buckets.operator import DUE, NAMED, SEALED, SHARD_OUTPUT_SCHEMA, ShardRows, update_shard
from state.buckets.parts import IdRows
from state.buckets.retimed import retimed_rows
from state.buckets.table_rows import STORED_SCHEMA, stored_rows
from state.cancel import NOTHING, MessageId, without_cancelled
from state.checkpoint.batch_settings import BatchSettings, DelayPolicy, RunningBatch
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan
from state.group_keys import overflow_key
from state.kinds import ANSWER, DEAD_LETTER, OCCURRENCE, REPEATING, REQUEST, repeats
from state.message import decode_chunk, empty_messages, encode_chunk
from state.message_ids import ID, each_of, ids_of, parse_id
from state.names import ANSWER_HEADER, FROM_HEADER, KEEP, KEEP_TIME, NAME_HEADER, NAMED_SCHEMA, REPLACE, name_rows
from state.reasons import Reason
from state.repeats.occurrences import OccurrenceRows
from state.shards import by_shard
from streaming.checkpoint.handover import writer_of_following
from streaming.job.requests.decision import Decision
from streaming.job.requests.desk import RequestDesk
from streaming.job.requests.moved_rows import check_moved, with_moves
from streaming.job.requests.recalled import RecalledMessages
from tests.messages import PARTITIONS, headers, records, some_batch_settings
from tests.streaming.job.requests.cancel_model import Answer, Model, Occurrence, Plan, Record
from tests.streaming.job.requests.memory_table import MemoryTable
from tests.streaming.job.requests.spark_table import SparkTable

TOPIC, RESULTS, CHECKPOINT = "delayline-in", "delayline-results", "c"
# The first message of a name stays.
KEEPING = "delayline-keeping"
# The newest message of a name comes out, at the due time of the first one.
TIMED = "delayline-timed"
# Each step says which of these modes it has.
CHANGING = "delayline-changing"
TOPICS = {"keep": KEEPING, "timed": TIMED, "changing": CHANGING}
HORIZON_MS = 1_000
# Takes the place of a reason until the release processes have answered.
DELIVERS = "delivers"
# Small buckets and segments, so that most waiting messages are sealed.
BATCH_SETTINGS = some_batch_settings(
    bucket_max_messages=2,
    segment_max_messages=3,
    index_precision_bits=4,
    policy=DelayPolicy(names=FROM_HEADER, repeats=True, repeat_ms=1),
    policies={
        KEEPING: DelayPolicy(names=FROM_HEADER, name_mode=KEEP, repeats=True, repeat_ms=1),
        TIMED: DelayPolicy(names=FROM_HEADER, name_mode=KEEP_TIME),
    },
    partitions=PARTITIONS | {RESULTS: 3},
)
SHARDS = BATCH_SETTINGS.shards


class Step(NamedTuple):
    """A batch: so long after the one before, with records, some of them in overflow groups; and what happens then.

    A record is its kind, its input partition, the delay of its message, the number of the record that it asks for, and
    a name. The number counts back from the last message, of this batch too, and then from the last record that is not a
    message. The first word of a kind may be one of `TOPICS`. A record with a kind that ends with "late" is published
    after the clock of its batch. A message of a kind with "repeats" comes again. The number that counts back says how
    often, and 0 stands for no end. The last word is the rule for missed occurrences. `mode` is the mode of `CHANGING`.
    Where that is `KEEP_TIME`, nothing repeats.
    """

    after_ms: int
    records: list[tuple[str, int, int, int, str]]
    overflows: bool
    then: str
    mode: str = REPLACE

    def plan(self, kind: str, back: int) -> Plan | None:
        """Return how the message of a record repeats."""
        if "repeats" not in kind or (kind.startswith("changing") and self.mode == KEEP_TIME):
            return None
        return Plan(_EVERY_MS, back or None, kind.rpartition(" ")[2])

    def mode_of(self, topic: str) -> str:
        """Return the mode of an input topic: which of several messages of a name waits."""
        return {KEEPING: KEEP, TIMED: KEEP_TIME, CHANGING: self.mode}.get(topic, REPLACE)

    @property
    def settings(self) -> BatchSettings:
        """The settings of the batch."""
        policy = replace(BATCH_SETTINGS.policy, name_mode=self.mode, repeats=self.mode != KEEP_TIME)
        return replace(BATCH_SETTINGS, policies={**BATCH_SETTINGS.policies, CHANGING: policy})


_KINDS = [
    "message", "message", "bad", "cancel", "waiting", "always", "named", "named", "named asks", "cancel-name",
    "keep", "keep", "keep asks", "keep late", "keep cancel-name", "deliver", "deliver", "deliver",
    "repeats one", "repeats all", "repeats none", "named repeats one", "keep repeats one", "waiting repeats all",
    "timed", "timed", "timed asks", "timed late", "timed cancel-name",
    "changing", "changing", "changing asks", "changing repeats one", "changing cancel-name",
]  # fmt: skip
_ENDS = [
    "", "", "killed before it is stored", "killed after it is stored", "killed at the end", "started again", "rescaled",
    "names joined",
]  # fmt: skip
_EVERY_MS = 4_000
_LATE_MS = 800
_RECORDS = st.tuples(
    st.sampled_from(_KINDS),
    st.integers(0, 1),
    st.sampled_from([0, 700, 1_500, 4_000, 60_000]),
    st.sampled_from([0, 1, 2, 3, 5, 8, 14]),
    st.sampled_from("ab"),
)
_STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from([0, 300, 1_000, 5_000]),
        st.lists(_RECORDS, max_size=7),
        st.booleans(),
        st.sampled_from(_ENDS),
        st.sampled_from([REPLACE, KEEP, KEEP_TIME]),
    ),
    min_size=2,
    max_size=7,
)
# Cases that random steps seldom hit: a sealed message is cancelled, and replaced twice at once. A name is taken over
# twice at once, by messages that are due.
_EXAMPLE = [
    Step(0, [("message", 0, 60_000, 0, "a")] * 6, False, ""),
    Step(
        1_000,
        [("cancel", 0, 0, 2, "a"), ("waiting", 0, 4_000, 3, "a"), ("waiting", 1, 4_000, 3, "a")],
        False,
        "killed after it is stored",
    ),
    Step(300, [("named", 0, 0, 0, "a"), ("named", 0, 0, 0, "a"), ("named", 1, 4_000, 0, "b")], True, "started again"),
    Step(300, [("cancel-name", 1, 0, 0, "b"), ("cancel", 0, 0, 3, "a")], False, "killed before it is stored"),
]
# Sealed and staged messages keep their names. Then requests ask for these messages: in the batch of the next message of
# their name, and in one before.
_KEEPING = [
    Step(
        0,
        [("keep", 0, 60_000, 0, "a"), ("keep", 0, 1_500, 0, "b"), ("keep asks", 0, 0, 0, "b")],
        False,
        "killed after it is stored",
    ),
    Step(300, [("keep asks", 0, 0, 0, "a"), ("keep", 0, 4_000, 0, "b")], True, "started again"),
    Step(300, [("keep asks", 1, 700, 0, "b"), ("cancel", 0, 0, 4, "a")], False, "killed before it is stored"),
    Step(
        0, [("keep", 0, 4_000, 0, "b"), ("keep cancel-name", 0, 0, 0, "a"), ("keep asks", 0, 60_000, 0, "a")], False, ""
    ),
    Step(0, [("keep", 0, 4_000, 0, "b"), ("waiting", 0, 4_000, 0, "b"), ("keep", 0, 0, 0, "a")], False, ""),
    Step(5_000, [("keep", 0, 0, 0, "b"), ("keep late", 0, 0, 0, "b")], False, ""),
]
# Messages that wait in a bucket, in the table, in an overflow group or under a name, and staged messages, are made due
# at once. They are asked for again, in the same batch and in the next one.
_DELIVERED = [
    Step(
        0,
        [("message", 0, 60_000, 0, "a")] * 6 + [("named", 1, 60_000, 0, "a"), ("message", 0, 1_500, 0, "a")],
        False,
        "",
    ),
    Step(
        300,
        [("deliver", 0, 0, 3, "a"), ("cancel", 0, 0, 3, "a"), ("deliver", 1, 0, 3, "a"), ("deliver", 0, 0, 5, "a")],
        False,
        "killed after it is stored",
    ),
    Step(300, [("message", 0, 60_000, 0, "a")] * 3 + [("deliver", 0, 0, 0, "a"), ("deliver", 0, 0, 2, "a")], True, ""),
    Step(
        300, [("deliver", 1, 0, 4, "a"), ("deliver", 1, 0, 1, "a"), ("named", 1, 4_000, 0, "a")], True, "started again"
    ),
    Step(300, [("cancel-name", 1, 0, 0, "a"), ("cancel", 1, 0, 2, "a"), ("waiting", 1, 4_000, 3, "a")], False, ""),
    Step(2_000, [("deliver", 1, 0, 0, "a"), ("waiting", 1, 4_000, 0, "a"), ("deliver", 1, 0, 0, "a")], False, ""),
]
# The same for messages that keep their names, that another checkpoint has left, in a replay of its first batch, for
# dead letters, for recalled messages, and for messages that are replaced or cancelled in the same batch.
_DELIVERED_LATER = [
    Step(
        0,
        [("keep", 0, 60_000, 0, "a"), *[("message", 0, 60_000, 0, "")] * 2, ("bad", 0, 0, 0, "")],
        False,
        "rescaled",
    ),
    Step(
        300,
        [*(("deliver", 0, 0, back, "") for back in (3, 1)), ("cancel", 0, 0, 2, ""), ("keep asks", 0, 1_500, 0, "a")],
        False,
        "killed after it is stored",
    ),
    Step(300, [*(("deliver", 0, 0, back, "") for back in (4, 0)), ("keep asks", 0, 4_000, 0, "a")], False, "rescaled"),
    Step(300, [("waiting", 0, 60_000, 0, ""), *(("deliver", 1, 0, back, "") for back in (0, 1))], True, ""),
    Step(300, [("always", 0, 60_000, 1, ""), ("deliver", 0, 0, 0, ""), ("cancel", 1, 0, 0, "")], False, "rescaled"),
    Step(300, [("waiting", 0, 60_000, 2, ""), *(("deliver", 0, 0, back, "") for back in (0, 1, 9))], False, ""),
    Step(5_000, [("deliver", 0, 0, 0, ""), ("cancel", 0, 0, 1, ""), ("named", 0, 4_000, 0, "b")], False, "rescaled"),
]
# A message that repeats is cancelled, replaced and asked for in the batch that reads it, after some occurrences, after
# the last one and in an overflow group. The same is done by its name, which it keeps. It is never due at once.
_REPEATING = [
    Step(
        0,
        [
            *(("repeats one", 0, 700, 0, ""), ("repeats all", 0, 700, 0, ""), ("repeats none", 1, 700, 2, "")),
            *(("named repeats one", 0, 700, 0, "a"), ("keep repeats one", 0, 700, 0, "a"), ("keep late", 0, 0, 0, "a")),
        ],
        False,
        "killed at the end",
    ),
    Step(300, [("repeats one", 0, 0, 0, ""), ("deliver", 0, 0, 0, ""), ("deliver", 0, 0, 5, "")], True, "rescaled"),
    Step(
        5_000,
        [("deliver", 0, 0, 1, ""), ("cancel", 0, 0, 1, ""), ("deliver", 1, 0, 2, ""), ("keep asks", 0, 0, 0, "a")],
        False,
        "killed after it is stored",
    ),
    Step(5_000, [("named repeats one", 0, 0, 0, "a"), ("deliver", 0, 0, 0, "")], True, "killed before it is stored"),
    Step(9_000, [("cancel", 0, 0, 6, ""), ("waiting repeats all", 0, 700, 2, "")], False, "started again"),
    Step(5_000, [("cancel-name", 0, 0, 0, "a"), ("keep cancel-name", 0, 0, 0, "a"), ("cancel", 1, 0, 0, "")], True, ""),
    Step(5_000, [("deliver", 0, 0, 0, ""), ("keep repeats one", 0, 700, 1, "a"), ("keep", 0, 700, 0, "a")], False, ""),
]
# A due time is taken over from a sealed message, from a staged one, and from a message of the same batch. It is sooner
# or later than the message's own due time, also from the third message on. It is not taken over after a request for the
# message before, nor once that message is due.
_TIMED = [
    Step(
        0,
        [("timed", 0, 60_000, 0, "a"), ("timed", 0, 1_500, 0, "b"), ("timed", 0, 4_000, 0, "b")],
        False,
        "killed after it is stored",
    ),
    Step(300, [("timed asks", 0, 0, 0, "a"), ("timed", 0, 60_000, 0, "b"), ("timed", 1, 0, 0, "a")], True, "rescaled"),
    Step(300, [("timed asks", 0, 4_000, 0, "b"), ("timed asks", 0, 4_000, 0, "a")], False, "started again"),
    Step(0, [("deliver", 0, 0, 0, ""), ("timed", 0, 60_000, 0, "a")], False, "killed before it is stored"),
    Step(
        0, [("timed cancel-name", 0, 0, 0, "a"), ("timed", 0, 60_000, 0, "a"), ("timed", 0, 1_500, 0, "a")], False, ""
    ),
    Step(5_000, [("timed", 0, 4_000, 0, "b"), ("timed late", 0, 0, 0, "b"), ("cancel", 0, 0, 2, "")], True, "rescaled"),
    Step(0, [("timed", 0, 60_000, 0, "b"), ("deliver", 0, 0, 0, ""), ("timed", 0, 1_500, 0, "b")], False, ""),
    # All of a batch wait, and none has the time of its request.
    Step(5_000, [("timed", 0, 700, 0, "b"), ("timed late", 0, 1_500, 0, "b")], False, ""),
    Step(5_000, [("timed", 0, 0, 0, "a"), ("timed", 0, 1_500, 0, "a"), ("timed asks", 0, 0, 0, "b")], False, ""),
]
# A message that repeats keeps its name from others when a request in vain asks for it to be due: in its batch, and
# later, when it is in the table. It does so until the next request. After its last occurrence, the message that had the
# name before does not come back.
_KEEPING_ON = [
    Step(0, [("keep", 0, 60_000, 0, "b"), ("keep repeats one", 0, 700, 0, "a"), ("deliver", 0, 0, 0, "")], False, ""),
    Step(
        300,
        [("keep asks", 0, 0, 0, "a"), ("keep cancel-name", 0, 0, 0, "b"), ("keep repeats one", 0, 700, 2, "b")],
        False,
        "started again",
    ),
    Step(5_000, [("deliver", 0, 0, 3, ""), ("keep asks", 0, 0, 0, "a")], True, "killed after it is stored"),
    Step(5_000, [("deliver", 1, 0, 4, ""), ("keep asks", 1, 0, 0, "a")], False, "rescaled"),
    Step(5_000, [], False, "names joined"),
    Step(300, [("keep asks", 0, 60_000, 0, "b")], False, ""),
    Step(300, [("deliver", 0, 0, 6, ""), ("cancel", 1, 0, 6, ""), ("keep asks", 0, 700, 0, "a")], False, ""),
]
# Each mode after each other one. A message that repeats gives the due time of the occurrence that waits, once, if it
# was accepted to keep its name. A message that has taken a due time over keeps its name.
_CHANGED = [
    Step(0, [("changing repeats one", 0, 700, 0, "a"), ("changing", 0, 60_000, 0, "b")], False, "", KEEP),
    Step(5_000, [("changing repeats one", 0, 700, 0, "b")], False, "", KEEP),
    Step(
        300,
        [("changing asks", 0, 60_000, 0, "a"), ("changing asks", 0, 0, 0, "b")],
        False,
        "killed after it is stored",
        KEEP_TIME,
    ),
    Step(300, [("changing asks", 0, 0, 0, "a"), ("changing repeats one", 0, 0, 0, "b")], True, "started again", KEEP),
    Step(5_000, [("changing repeats one", 0, 700, 0, "a"), ("changing asks", 0, 60_000, 0, "b")], False, ""),
    Step(300, [("changing asks", 0, 60_000, 0, "a"), ("changing", 0, 1_500, 0, "b")], False, "rescaled", KEEP_TIME),
    Step(300, [("changing asks", 0, 700, 0, "a"), ("changing asks", 0, 700, 0, "b")], False, "names joined"),
    Step(0, [("changing repeats one", 0, 700, 1, "a"), ("changing repeats one", 0, 0, 1, "b")], False, "", KEEP),
    # The last occurrences are staged.
    Step(300, [("changing", 0, 0, 0, "a"), ("changing asks", 0, 60_000, 0, "b")], False, "", KEEP_TIME),
]


@dataclass
class State:
    """Stands for Spark's state of a group."""

    watermark_ms: int
    get: tuple[Any, ...] = ()

    @property
    def exists(self) -> bool:
        """Whether the group has state."""
        return bool(self.get)

    def getCurrentWatermarkMs(self) -> int:
        """Return the cutoff."""
        return self.watermark_ms

    def setTimeoutTimestamp(self, _: int) -> None:
        """Pass over it: each batch updates each group."""

    def update(self, value: tuple[Any, ...]) -> None:
        """Set the state."""
        self.get = value

    def remove(self) -> None:
        """Remove the state."""
        self.get = ()


@dataclass
class Service:
    """Takes batches in as the job does, on a `table`, and releases the messages that they stage.

    `ready` are the staged messages, with their due times, and `came_out` the released ones, in order.
    """

    table: Any
    recalled: list[MessageId]
    desk: RequestDesk | None = None
    buckets: list[bytes | None] = field(default_factory=lambda: [None] * SHARDS)
    sealed: dict[int, pa.Table] = field(default_factory=dict)
    ready: dict[MessageId | Occurrence, int] = field(default_factory=dict)
    came_out: list[MessageId | Occurrence] = field(default_factory=list)

    def release(self, now_ms: int) -> None:
        """Let messages that are due by `now_ms` come out."""
        due = [each for each, due_ms in self.ready.items() if due_ms <= now_ms]
        self.came_out += due
        for each in due:
            del self.ready[each]

    def batch(self, span: BatchSpan, clock_ms: int, arrivals: Accepted, step: Step) -> dict[MessageId, Answer]:
        """Run a batch, perhaps twice, and return its answers."""
        output, self.buckets = self._state_stage(span, clock_ms, arrivals, step.overflows)
        decision = self._decide(output, span, clock_ms)
        moved = self._moved(output, decision, span)
        if step.then == "killed before it is stored":
            decision = self._decided_again(decision, output, span, clock_ms)
        self._store(moved, decision, span)
        if step.then == "killed after it is stored":
            decision = self._decided_again(decision, output, span, clock_ms)
            assert _due_in(self._moved(output, decision, span)) == _due_in(moved), "a replay hands over the same"
        answers, repeating = self._hand_over(moved, decision, span)
        names = self._occur(repeating, span, clock_ms)
        if step.then == "killed at the end":
            decision = self._decided_again(decision, output, span, clock_ms)
        assert self.desk is not None
        decision = replace(decision, names=pa.concat_tables([decision.names, names]))
        self.desk.stored(decision, span, clock_ms)
        if step.then in ("started again", "names joined"):
            self._end()
        if step.then == "names joined":
            self._join_names(min(clock_ms, span.cutoff_ms))
        # The batch has read the earlier answers of the release processes before.
        return self._answered(answers)

    def _join_names(self, due_before_ms: int) -> None:
        """Join all Delta partitions with names but the oldest."""
        if numbers := sorted(self.table.id_partitions(IdRows.NAMED))[1:]:
            self.table.join_names(numbers, due_before_ms)

    def rescale(self, bucket: int) -> None:
        """Seal the contents of the state as `bucket`, as another checkpoint finds them."""
        self._end()
        rows: list[dict[str, Any]] = []
        for shard, chunk in enumerate(self.buckets):
            if chunk is not None:
                rows += ShardRows(BATCH_SETTINGS, bucket, shard, 0, 0).sealed(decode_chunk(chunk))
        self.buckets = [None] * SHARDS
        if rows:
            output = pa.Table.from_pylist(rows, schema=SHARD_OUTPUT_SCHEMA)
            self.table.append(self._sealed(output, bucket), f"rest-{bucket}", 0)

    def _moved(self, output: pa.Table, decision: Decision, span: BatchSpan) -> pa.Table:
        if not decision.moves.num_rows:
            return output
        assert decision.shows(span.cutoff_ms), "a rebuild must know it"
        assert self.desk is not None
        stored = decision.places
        frame = with_moves(self.table.frame(output), self.table, stored, decision.moves, span, BATCH_SETTINGS)
        moved = frame.toArrow().cast(SHARD_OUTPUT_SCHEMA)
        rows: list[Any] = moved.to_pylist()
        before: list[Any] = output.to_pylist()
        check_moved(before, rows, stored)
        return moved

    def _decided_again(self, first: Decision, output: pa.Table, span: BatchSpan, clock_ms: int) -> Decision:
        self._end()
        again = self._decide(output, span, clock_ms)
        assert _comparable(again) == _comparable(first), "a replay decides the same"
        return again

    def _end(self) -> None:
        if self.desk is not None:
            self.desk.close()
            self.desk = None

    def _decide(self, output: pa.Table, span: BatchSpan, clock_ms: int) -> Decision:
        self.desk = self.desk or RequestDesk(self.table, Settings())
        rows: list[Any] = output.to_pylist()
        frame: Any = self.table.frame(output)
        # In a replay, the batch may have stored the following occurrences.
        before = [messages for bucket, messages in self.sealed.items() if bucket < span.bucket]
        may_repeat = any(repeats(messages).any() for messages in before)
        return self.desk.decide(frame, rows, span, clock_ms, may_repeat=may_repeat)

    def _state_stage(
        self, span: BatchSpan, clock_ms: int, arrivals: Accepted, overflows: bool
    ) -> tuple[pa.Table, list[bytes | None]]:
        settings = replace(BATCH_SETTINGS, first_bucket=span.origin.first_bucket)
        running = RunningBatch(span.batch_id, settings, 2, 100, clock_ms)
        own: dict[int, list[bytes | None]] = {key: [] for key in BATCH_SETTINGS.shard_keys}
        requests = RequestGrouping(running)
        for key, own_requests in [*requests.divide(arrivals), *requests.ids()]:
            own[key].append(encode_chunk(own_requests))
        for shard, messages in by_shard(arrivals.messages, SHARDS):
            half = messages.num_rows // 2 if overflows else messages.num_rows
            own[BATCH_SETTINGS.shard_keys[shard]].append(encode_chunk(messages.slice(0, half)))
            if overflows:
                own[overflow_key(shard, 0, SHARDS)] = [encode_chunk(messages.slice(half))]
        frames, buckets = [], list(self.buckets)
        for key, chunks in own.items():
            # An overflow group has no state.
            own_shard = BATCH_SETTINGS.shard_keys.index(key) if key in BATCH_SETTINGS.shard_keys else None
            state = State(span.cutoff_ms)
            if own_shard is not None and (bucket := buckets[own_shard]) is not None:
                state.update((bucket,))
            frames += list(update_shard(lambda: running)((key,), [pd.DataFrame({"chunk": chunks})], state))
            if own_shard is not None:
                buckets[own_shard] = state.get[0] if state.exists else None
        rows = [row for frame in frames for row in frame.to_dict("records")]
        return pa.Table.from_pylist(rows, schema=SHARD_OUTPUT_SCHEMA), buckets

    def _store(self, output: pa.Table, decision: Decision, span: BatchSpan) -> None:
        rows = pa.concat_tables(
            [
                self._sealed(output, span.bucket),
                cancelled_rows(decision.cancelled, span.bucket, decision.replaced),
                name_rows(decision.names, span.bucket),
                retimed_rows(decision.retimed, span.bucket),
            ]
        )
        if rows.num_rows:
            self.table.append(rows, span.origin.checkpoint, span.batch_id)

    def _sealed(self, output: pa.Table, bucket: int) -> pa.Table:
        """Return the rows to store of the messages that are sealed as `bucket`."""
        of_kind = output.filter(pc.equal(output.column("kind"), SEALED))
        chunks = [decode_chunk(chunk) for chunk in of_kind.column("chunk").to_pylist()]
        if chunks:
            before = [self.sealed[bucket]] if bucket in self.sealed else []
            self.sealed[bucket] = pa.concat_tables([*before, *chunks])
        as_stored = stored_rows(BATCH_SETTINGS.index_precision_bits)
        return pa.Table.from_batches(as_stored(of_kind.to_batches()), STORED_SCHEMA)

    def _hand_over(
        self, output: pa.Table, decision: Decision, span: BatchSpan
    ) -> tuple[dict[MessageId, Answer], list[pa.Table]]:
        """Stage the due messages, and return the answers, and those messages that repeat."""
        due = [decode_chunk(row["chunk"]) for row in output.to_pylist() if row["kind"] == DUE]
        answers: dict[MessageId, Answer] = {}
        repeating: list[pa.Table] = []
        for messages in due:
            left = without_cancelled(messages, decision.left_out)
            repeating.append(left.filter(pa.array(repeats(left))))
            left = left.filter(pa.array(~repeats(left)))
            for row in answered(left, decision.answers).to_pylist():
                identity = (row["topic"], row["partition"], row["offset"])
                if row["kind"] in (REQUEST, ANSWER):
                    answers[identity] = self._answer(row)
                elif row["kind"] == DEAD_LETTER:
                    self.came_out.append(identity)
                else:
                    self._hand_over_one(identity, row["deliver_at_ms"])
        gone = cancelled_until(self.table, span.bucket)
        for bucket, messages in self.sealed.items():
            due = pc.field("deliver_at_ms")
            in_range = (due >= span.handed_over_below_ms) & (due < span.cutoff_ms)
            own = messages.filter(in_range)
            for at, row in enumerate(own.to_pylist()):
                identity, due_ms = (row["topic"], row["partition"], row["offset"]), row["deliver_at_ms"]
                ranges = gone.get(identity, ())
                if any(from_ms <= due_ms <= until_ms and last >= bucket for from_ms, until_ms, last in ranges):
                    continue
                if row["kind"] == REPEATING:
                    repeating.append(own.slice(at, 1))
                else:
                    self._hand_over_one(identity, due_ms)
        return answers, repeating

    def _answered(self, answers: dict[MessageId, Answer]) -> dict[MessageId, Answer]:
        """Return `answers`, with the release processes' answers to the requests that were staged for them."""
        sent: set[MessageId] = set()
        for request, answer in sorted(answers.items()):
            if "/" in answer.result:
                result = self._recall(parse_id(answer.result), answer.reason == DELIVERS, sent)
                answers[request] = Answer(answer.about, *result, answer.accepted)
        return answers

    def _occur(self, messages: list[pa.Table], span: BatchSpan, clock_ms: int) -> pa.Table:
        """Stage occurrences of messages that repeat, and store those that follow. Return their names."""
        rows: list[dict[str, Any]] = []
        span = replace(span, clock_ms=clock_ms, missed_before_ms=clock_ms)
        for shard, own in by_shard(pa.concat_tables([empty_messages(), *messages]), SHARDS):
            made = OccurrenceRows(BATCH_SETTINGS, span, shard)
            made.add(own)
            rows += [row for batch in (*made.staged(own), *made.finish()) for row in batch.to_pylist()]
        names = [decode_chunk(row["chunk"]) for row in rows if row["kind"] == NAMED]
        named = pa.concat_tables([NAMED_SCHEMA.empty_table(), *names])
        for row in (row for each in rows if each["kind"] == DUE for row in decode_chunk(each["chunk"]).to_pylist()):
            assert row["kind"] == OCCURRENCE
            number = int(row["headers"][-1]["value"])
            self._hand_over_one((*(row[name] for name in ID), number), row["deliver_at_ms"])
        stored = self._sealed(pa.Table.from_pylist(rows, schema=SHARD_OUTPUT_SCHEMA), span.bucket)
        following = pa.concat_tables([stored, name_rows(named, span.bucket)])
        if following.num_rows:
            self.table.append(following, writer_of_following(span.origin.checkpoint), span.batch_id)
        return named

    def _recall(self, asked: MessageId, delivers: bool, sent: set[MessageId]) -> tuple[str, str]:
        """Do as the release processes do, and return their answer. `sent` are messages that they make due at once."""
        if self.ready.pop(asked, None) is not None:
            if delivers:
                self.came_out.append(asked)
                sent.add(asked)
            else:
                self.recalled.append(asked)
        if asked in self.recalled:
            return "cancelled", "already-cancelled" if delivers else "recalled"
        return ("due-now", "made-due") if delivers and asked in sent else ("too-late", "released")

    def _hand_over_one(self, identity: MessageId | Occurrence, due_ms: int) -> None:
        assert identity not in self.ready, "handed over once"
        self.ready[identity] = due_ms

    def _answer(self, row: dict[str, Any]) -> Answer:
        """Return the answer in a record for the results topic; of an open one, the id in place of the result."""
        value, key = row["value"], row["key"].decode()
        if row["kind"] == REQUEST:
            undecided = Undecided.from_bytes(value)
            assert undecided.asked_ms > 0, "nothing is deleted, and no answer lost"
            return Answer(parse_id(key), key, DELIVERS * undecided.delivers, True if undecided.replaces else None)
        content = json.loads(value)
        assert content["id"] in (key, None)
        own = "/".join(str(row[name]) for name in ID)
        assert content.get("replacement", own) == own
        about, result, reason = content["id"] and parse_id(content["id"]), content["result"], content["reason"]
        assert {each.code: each.result for each in Reason}[reason] == result
        return Answer(about, result, reason, content.get("accepted"), content.get("occurrence"))


def _due_in(output: pa.Table) -> set[tuple[Any, ...]]:
    """Return the ids and due times of the due messages in the rows of a batch."""
    chunks = [decode_chunk(row["chunk"]) for row in output.to_pylist() if row["kind"] == DUE]
    return {tuple(row[name] for name in (*ID, "kind", "deliver_at_ms")) for each in chunks for row in each.to_pylist()}


def _comparable(decision: Decision) -> list[Any]:
    """Return what a replay decides too: all but the time at which a request goes on."""
    answers = decision.answers.to_pylist()
    for answer in answers:
        if answer["kind"] == REQUEST:
            answer["value"] = Undecided.from_bytes(answer["value"])._replace(asked_ms=0)

    def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(rows, key=repr)

    left_out = {source: own.tolist() for source, own in decision.left_out.items()}
    every = (decision.cancelled, decision.names, decision.moves, decision.retimed)
    tables = [ordered(each.to_pylist()) for each in every]
    return [ordered(answers), *tables, left_out, dict(decision.replaced)]


class Run:
    """Runs each step in the service and in the model."""

    def __init__(self, table: Any, recalled: list[MessageId]) -> None:
        self.service, self.model = Service(table, recalled), Model()
        self._clock_ms = self._cutoff_ms = 1_798_000_000_000
        self._origin, self._batch_id = CheckpointOrigin(CHECKPOINT, 1, SHARDS), 0
        self._ends = {(topic, partition): 0 for topic in (TOPIC, *TOPICS.values()) for partition in (0, 1)}
        self._published: list[MessageId] = []
        # The published records that are messages, and the other ones.
        self._targets: list[MessageId] = []
        self._others: list[MessageId] = []
        self._requests: dict[MessageId, Answer] = {}
        self.messages: set[MessageId] = set()

    def take(self, step: Step) -> None:
        """Run a batch of both, and compare them."""
        self._batch_id += 1
        self._clock_ms += step.after_ms
        # Some cutoffs are behind the clock, as after an outage.
        ahead_ms = HORIZON_MS if self._batch_id % 3 else -HORIZON_MS
        previous_ms, self._cutoff_ms = self._cutoff_ms, max(self._cutoff_ms, self._clock_ms + ahead_ms)
        self.service.release(self._clock_ms)
        self.model.release(self._clock_ms)
        starts = _offsets(self._ends)
        published, raw = self._publish(step)
        known_ms = previous_ms if self._batch_id else 0
        span = BatchSpan(self._origin, self._batch_id, known_ms, self._cutoff_ms, starts, _offsets(self._ends))
        arrivals = accept(records(raw), step.settings, self._clock_ms)
        answers = self.service.batch(span, self._clock_ms, arrivals, step)
        expected = self.model.batch(published, set(self._published), self._clock_ms, previous_ms, self._cutoff_ms)
        # A message that takes over a name may get the answer that release processes have given before.
        more = {request: answers[request] for request in answers.keys() - expected.keys()}
        assert all(each.result == "cancelled" and each.about in self.model.recalled for each in more.values()), more
        by_name = {record.id for record in published if record.name is not None and record.due_ms is not None}
        assert more.keys() <= by_name
        for request, answer in expected.items():
            assert answers[request] == answer, (request, answers[request], answer)
        assert self.service.ready == self.model.handed_over
        assert set(self.service.came_out) == self.model.out
        self._requests |= answers
        if step.then == "rescaled":
            self._origin = CheckpointOrigin(
                f"{CHECKPOINT}{span.bucket}", self._origin.generation + 1, SHARDS, span.bucket + 2, self._cutoff_ms,
                _offsets(self._ends),
            )  # fmt: skip
            self._batch_id = -1
            self.service.rescale(self._origin.overdue_bucket)

    def end(self) -> None:
        """Let all come out, and check that each message did, or is cancelled, and that all answers say so."""
        self.take(Step(10**6, [], False, ""))
        self.take(Step(10**6, [], False, ""))
        out = self.service.came_out
        assert len(out) == len(set(out)), "once"
        assert set(out) & self.messages == self.messages - self.model.cancelled
        numbers: dict[MessageId, list[int]] = {}
        for each in out:
            if len(each) == 4:
                numbers.setdefault(each[:3], []).append(each[3])
        assert all(own == list(range(1, len(own) + 1)) for own in numbers.values()), "each once, in turn"
        assert not set(out) & self.model.cancelled
        for request, answer in self._requests.items():
            assert answer.result != "cancelled" or answer.about not in out, request
            assert answer.result != "too-late" or answer.about in out or answer.about not in self.messages, request
            assert answer.result != "due-now" or answer.about in out, request
            assert answer.accepted is not False or request not in out
            assert answer.occurrence is None or answer.occurrence == len(numbers.get(answer.about or NOTHING, []))

    def _publish(self, step: Step) -> tuple[list[Record], list[dict[str, Any]]]:
        """Return the records of a batch, for the model and for the job."""
        ids: list[MessageId] = []
        for kind, partition, *_ in step.records:
            source = TOPICS.get(kind.partition(" ")[0], TOPIC), partition
            ids.append((*source, self._ends[source]))
            self._ends[source] += 1
        self._published += ids
        kinds = {own: kind for own, (kind, *_) in zip(ids, step.records, strict=True)}
        self._others += [own for own, kind in kinds.items() if kind in ("bad", "deliver") or "cancel" in kind]
        self._targets += [own for own in ids if own not in self._others]
        targets = [*self._others, (TOPIC, 0, 10**6), ("other", 0, 1), *self._targets]
        published, raw = [], []
        for (kind, _, delay_ms, back, name), own in zip(step.records, ids, strict=True):
            asked = targets[-1 - back % len(targets)]
            published_ms = self._clock_ms + (_LATE_MS if kind.endswith("late") else 0)
            record, marks = self._record(kind.partition(" repeats")[0], own, published_ms, delay_ms, asked, name)
            record = record._replace(plan=step.plan(kind, back))
            if record.due_ms is not None and record.name is not None:
                mode = step.mode_of(own[0])
                record = record._replace(keeps=mode == KEEP, takes_time=mode == KEEP_TIME)
            after = [("deliver-after", b"soon" if kind == "bad" else b"%d" % delay_ms)]
            if record.plan is not None:
                after += _rule(record.plan)
            published.append(record)
            raw.append(
                dict(zip(("topic", "partition", "offset"), own, strict=True))
                | {"headers": headers(*after, *marks), "timestamp_ms": published_ms, "key": b"%d" % own[2]}
            )
            if record.due_ms is not None and not record.is_bad and record.plan is None:
                self.messages.add(own)
        return published, raw

    def _record(
        self, kind: str, own: MessageId, published_ms: int, delay_ms: int, asked: MessageId, name: str
    ) -> tuple[Record, list[tuple[str, bytes]]]:
        text, due_ms = "/".join(map(str, asked)).encode(), published_ms + delay_ms
        # Each topic has its own names.
        of_topic = own[0] + name
        if kind == "cancel":
            return Record(own, asked=asked), [("delayline-cancel", text)]
        if kind == "deliver":
            return Record(own, asked=asked, delivers=True), [("delayline-deliver-now", text)]
        if kind.endswith("cancel-name"):
            return Record(own, name=of_topic), [("delayline-cancel-name", name.encode())]
        if kind.startswith(("named", *TOPICS)):
            requests = kind.endswith("asks")
            marks = [(NAME_HEADER, name.encode()), *([(ANSWER_HEADER, b"true")] if requests else [])]
            return Record(own, due_ms, name=of_topic, published_ms=published_ms, wants_answer=requests), marks
        if kind in ("waiting", "always"):
            # A record cannot replace itself or a later message of its partition.
            is_bad = asked[:2] == own[:2] and asked[2] >= own[2]
            marks = [("delayline-replaces", text), ("delayline-if", kind.encode())]
            return Record(own, due_ms, is_bad, asked, kind), marks
        return Record(own, due_ms, kind == "bad"), []


def _rule(plan: Plan) -> list[tuple[str, bytes]]:
    headers = [("delayline-repeat", b"every %dms" % plan.every_ms), ("delayline-repeat-missed", plan.missed.encode())]
    return headers if plan.most is None else [*headers, ("delayline-repeat-count", b"%d" % plan.most)]


def _offsets(ends: Mapping[tuple[str, int], int]) -> dict[str, dict[str, int]]:
    offsets: dict[str, dict[str, int]] = {}
    for (topic, number), end in ends.items():
        offsets.setdefault(topic, {})[str(number)] = end
    return offsets


@contextmanager
def nothing_but_the_table() -> Iterator[list[MessageId]]:
    """Let the desk need no broker, and yield the list of messages that release processes have cancelled."""
    recalled: list[MessageId] = []
    with pytest.MonkeyPatch.context() as patched:
        # No message is old.
        patched.setattr(RecalledMessages, "known_from", {})
        patched.setattr(RecalledMessages, "read", lambda *_: None)
        patched.setattr(RecalledMessages, "forget", lambda *_: None)
        patched.setattr(RecalledMessages, "among", lambda _, wanted: ids_of(each_of(wanted) & set(recalled)))
        patched.setattr("pyspark.SparkFiles.getRootDirectory", tempfile.gettempdir)
        yield recalled


def run_all(table: Any, steps: Iterable[Step]) -> None:
    with nothing_but_the_table() as recalled:
        run = Run(table, recalled)
        for step in steps:
            run.take(step)
        run.end()


def cancelled_until(table: Any, bucket: int) -> dict[MessageId, list[tuple[int, int, int]]]:
    """Return the messages that batches up to the batch of `bucket` have cancelled in buckets.

    Each message comes with the first and the last due time (epoch ms) that it may have, and the bucket of the batch.
    """
    found: dict[MessageId, list[tuple[int, int, int]]] = {}
    for ids in table.ids_before(IdRows.CANCELLED, bucket + 1):
        for row in ids.filter(pc.field("deliver_at_ms") > NEVER_MS).to_pylist():
            identity = (row["topic"], row["partition"], row["offset"])
            found.setdefault(identity, []).append((row["deliver_at_ms"], row["max_deliver_at_ms"], row["bucket"]))
    return found


@example(_EXAMPLE)
@example(_KEEPING)
@example(_DELIVERED)
@example(_DELIVERED_LATER)
@example(_REPEATING)
@example(_TIMED)
@example(_KEEPING_ON)
@example(_CHANGED)
@given(_STEPS)
@settings(max_examples=12)
def test_each_message_comes_out_or_is_cancelled_and_all_answers_are_those_of_the_model(steps: list[Step]) -> None:
    run_all(MemoryTable(), steps)


@pytest.mark.thorough
@pytest.mark.takes(60)
@given(_STEPS)
@settings(max_examples=600)
def test_hundreds_of_runs_agree_with_the_model(steps: list[Step]) -> None:
    run_all(MemoryTable(), steps)


@pytest.fixture
def new_table(spark: SparkSession, empty_table: Path, tmp_path: Path) -> Callable[[], SparkTable]:
    """A function that makes an empty table."""
    numbers = count()

    def make() -> SparkTable:
        path = tmp_path / str(next(numbers))
        shutil.copytree(empty_table, path)
        return SparkTable(spark, str(path))

    return make


@pytest.mark.takes(20)
@pytest.mark.parametrize("steps", [_DELIVERED_LATER, pytest.param(_KEEPING_ON, marks=pytest.mark.thorough)])
def test_a_run_on_the_real_table_agrees_with_the_model(new_table: Callable[[], SparkTable], steps: list[Step]) -> None:
    run_all(new_table(), steps)


@pytest.mark.thorough
@pytest.mark.takes(60)
def test_random_runs_on_the_real_table_agree_with_the_model(new_table: Callable[[], SparkTable]) -> None:
    @given(_STEPS)
    @settings(max_examples=8, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    def run(steps: list[Step]) -> None:
        run_all(new_table(), steps)

    run()
