"""The service of a run: it takes batches in as the job does, and releases the messages that they stage."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from conf.settings import Settings
from sources.intake.accepted import Accepted
from sources.intake.request_grouping import RequestGrouping
from state.answers import Undecided, answered
from state.buckets.cancelled import cancelled_rows
from state.buckets.operator import DUE, NAMED, SEALED, SHARD_OUTPUT_SCHEMA, ShardRows, update_shard
from state.buckets.parts import IdRows
from state.buckets.retimed import retimed_rows
from state.buckets.table_rows import STORED_SCHEMA, stored_rows
from state.cancel import MessageId, without_cancelled
from state.checkpoint.batch_settings import RunningBatch
from state.checkpoint.progress import BatchSpan
from state.group_keys import overflow_key
from state.kinds import ANSWER, DEAD_LETTER, OCCURRENCE, REPEATING, REQUEST, repeats
from state.message import decode_chunk, empty_messages, encode_chunk
from state.message_ids import ID, parse_id
from state.names import NAMED_SCHEMA, name_rows
from state.reasons import Reason
from state.repeats.occurrences import OccurrenceRows
from state.shards import by_shard
from streaming.checkpoint.switch_over import writer_of_following
from streaming.job.requests.decision import Decision
from streaming.job.requests.desk import RequestDesk
from streaming.job.requests.moved_rows import check_moved, with_moves
from tests.streaming.job.requests.cancel_records import Answer, Occurrence
from tests.streaming.job.requests.decision_content import cancelled_until, comparable, due_in
from tests.streaming.job.requests.decision_steps import BATCH_SETTINGS, SHARDS, Step
from tests.streaming.job.requests.group_state import State

# Takes the place of a reason until the release processes have answered.
DELIVERS = "delivers"


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
            assert due_in(self._moved(output, decision, span)) == due_in(moved), "a replay hands over the same"
        answers, repeating = self._stage(moved, decision, span)
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
        assert comparable(again) == comparable(first), "a replay decides the same"
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

    def _stage(
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
                    self._stage_one(identity, row["deliver_at_ms"])
        gone = cancelled_until(self.table, span.bucket)
        for bucket, messages in self.sealed.items():
            due = pc.field("deliver_at_ms")
            in_range = (due >= span.staged_below_ms) & (due < span.cutoff_ms)
            own = messages.filter(in_range)
            for at, row in enumerate(own.to_pylist()):
                identity, due_ms = (row["topic"], row["partition"], row["offset"]), row["deliver_at_ms"]
                ranges = gone.get(identity, ())
                if any(from_ms <= due_ms <= until_ms and last >= bucket for from_ms, until_ms, last in ranges):
                    continue
                if row["kind"] == REPEATING:
                    repeating.append(own.slice(at, 1))
                else:
                    self._stage_one(identity, due_ms)
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
            self._stage_one((*(row[name] for name in ID), number), row["deliver_at_ms"])
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

    def _stage_one(self, identity: MessageId | Occurrence, due_ms: int) -> None:
        assert identity not in self.ready, "staged once"
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
