"""A run of whole batches, in the service and in the model, which are compared after each batch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from sources.intake.accept import accept
from state.cancel import NOTHING, MessageId
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan
from state.message_ids import ids_of, to_set
from state.names import ANSWER_HEADER, KEEP, KEEP_TIME, NAME_HEADER
from streaming.job.requests.recalled import RecalledMessages
from tests.messages import headers, records
from tests.streaming.job.requests.cancel_model import Model
from tests.streaming.job.requests.cancel_records import Answer, Plan, Record
from tests.streaming.job.requests.decision_service import Service
from tests.streaming.job.requests.decision_steps import CHECKPOINT, HORIZON_MS, SHARDS, TOPIC, TOPICS, Step

_LATE_MS = 800


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
        assert self.service.ready == self.model.staged
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
        patched.setattr(RecalledMessages, "only", lambda _, wanted: ids_of(to_set(wanted) & set(recalled)))
        patched.setattr("pyspark.SparkFiles.getRootDirectory", tempfile.gettempdir)
        yield recalled


def run_all(table: Any, steps: Iterable[Step]) -> None:
    """Run all steps on `table`, and check the end of the run."""
    with nothing_but_the_table() as recalled:
        run = Run(table, recalled)
        for step in steps:
            run.take(step)
        run.end()
