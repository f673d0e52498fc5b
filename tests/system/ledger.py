"""The messages that a test published and received, and the judge's verdict on them (`streaming.judge`)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from streaming.judge.cancels import Answers
from streaming.judge.checkpoint_watch import CheckpointWatch
from streaming.judge.claims_watch import ClaimsWatch
from streaming.judge.contract import Environment
from streaming.judge.deliveries import as_made_due, too_early, too_late
from streaming.judge.names import name_problems
from streaming.judge.outputs import Outputs
from streaming.judge.reasons import Circumstances
from streaming.judge.record import Header, Received
from streaming.judge.schedules import last_numbers, schedule_problems
from streaming.judge.verdict import LEAST_CHECKED, Verdict, judge
from tests.eventually import PATIENCE
from tests.system.publishing import Publishing

__all__ = ["Got", "Header", "Ledger"]

Got = Received
# From the last delivery of a batch until it is committed, on a busy machine.
_COMMIT_S = 20.0
# Until a message that has a name takes it over.
_NAME_SLACK_MS = 20_000


@dataclass
class Ledger(Publishing):
    """Publishes messages, subscribes from the beginning in a thread, and lets the judge compare the two.

    `storage` is the folder of the job's storage; `claims` and `near` are the topics of forwarders.
    """

    storage: Path
    _: KW_ONLY
    claims: str = ""
    near: str = ""
    # When the job was killed, and delivered again, epoch ms.
    outages: list[tuple[int, int]] = field(default_factory=list)
    # How long after its due time an occurrence may come.
    repeat_slack_ms: int = 15_000
    # How long before its due time a message is staged, and written to its topic, at the earliest.
    horizon_ms: int = 60_000
    written_ms: int = 120
    # Whether neither the broker nor a release process restarts while requests are answered.
    is_steady: bool = False
    # Whether the checkpoint is lost in between.
    is_rebuilt: bool = False
    got: list[Got] = field(default_factory=list, repr=False)
    # The latest time that the clock of the job's host had shown by an instant of this process' clock, both epoch ms.
    shown_ms: Callable[[int], int] = lambda now_ms: now_ms
    # Raises if the job has ended, so that waiting is pointless.
    check: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.closed = False
        claims = ClaimsWatch(self.bootstrap, self.claims, self.near) if self.claims else None
        self._watch = CheckpointWatch(self.storage, claims)
        self._reader = Outputs(self.bootstrap, self.outputs, self.got.append)
        self._partitions = {topic: {count} for topic, count in self._reader.partitions.items()}

    def cancelled(self) -> set[str]:
        """Return the ids of the messages that were answered to be cancelled."""
        return Answers.of(list(self.answers)).cancelled(self.requests)

    def places(self) -> dict[str, Any]:
        """Return the places, by message id, that answers report for messages that came out before their requests."""
        return Answers.of(list(self.answers)).places()

    def forwarded(self) -> set[str]:
        """Return the ids of the messages that forwarders took."""
        acceptance = self._watch.acceptance()
        return {identity for identity, message in self.sent.items() if acceptance.is_forwarded(message)}

    def refused(self) -> set[str]:
        """Return the ids of the replacements that were answered not to be accepted."""
        return Answers.of(list(self.answers)).refused()

    def wait_for_all(self, timeout_s: float) -> None:
        """Wait until all cancels are answered, and all published messages have come out that should."""
        self.flush()
        requests = self.requests.keys() | {each for each, named in self.named.items() if named.due_ms is None}
        self.wait_for(lambda: requests <= {answer.id for answer in list(self.answers)}, timeout_s)
        expected = self.sent.keys() - self.cancelled() - self.refused() - self._superseded()
        self.wait_for(lambda: self._reader.ids >= expected, timeout_s)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait for a condition on the received messages.

        Fails after `PATIENCE` times `timeout_s`, with the missing ids.
        """
        timeout_s *= PATIENCE
        deadline = time.monotonic() + timeout_s
        while not condition():
            self.check()
            self._reader.check()
            if time.monotonic() > deadline:
                missing = sorted(self.sent.keys() - self._reader.ids)
                raise AssertionError(
                    f"not within {timeout_s} s; of {len(self.sent)} messages {len(missing)} have not come out, "
                    f"such as {missing[:5]}"
                )
            time.sleep(0.02)

    def verify_after_outage(self, timeout_s: float, least_checked: float = LEAST_CHECKED) -> None:
        """Wait for all messages, and verify."""
        self.wait_for_all(timeout_s)
        self.verify(least_checked)

    def verify(self, least_checked: float = LEAST_CHECKED) -> None:
        """Assert the contract for all published messages, up to the current end of the output topics.

        `least_checked` is the least share of messages that the judge must have checked for order. `finish` judges later
        records.
        """
        self._drain()
        self._wait_for_commits()
        problems = self._problems(complete=True, least_checked=least_checked)
        assert not problems, "\n".join(problems)

    def finish(self) -> None:
        """Assert that no received record breaks the contract. The job must have ended.

        Messages may be missing, since a test may end its job early. A closed ledger checks nothing.
        """
        if self.closed:
            return
        self.flush()
        self._drain()
        problems = self._problems(complete=False, least_checked=0)
        assert not problems, "\n".join(problems)

    def reread(self) -> None:
        """Subscribe again and open a new producer: both then know partitions that were added meanwhile."""
        self.flush()
        self._open_producer()
        self._reader.close()
        self.got.clear()
        self._reader = Outputs(self.bootstrap, self.outputs, self.got.append)
        for topic, count in self._reader.partitions.items():
            self._partitions[topic].add(count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.finish()
        finally:
            self.close()

    def close(self) -> None:
        """End the subscription, and stop watching the checkpoint."""
        if not self.closed:
            self.closed = True
            self._reader.close()
            if self._results is not None:
                self._results.close()
            self._watch.close()

    def _drain(self) -> None:
        for outputs in (self._reader, self._results):
            if outputs is not None:
                outputs.drain()
        self._watch.drain()

    def _problems(self, complete: bool, least_checked: float) -> list[str]:
        problems = self._judged(complete).problems(least_checked)
        came_out = {record.id for record in self.got} - self.repeated.keys()
        circumstances = Circumstances(
            inputs={each.rsplit("/", 2)[0] for each in self.sent.keys() | self.requests.keys()},
            messages=self.sent,
            horizon_ms=self.horizon_ms,
            written_ms=self.written_ms,
            is_rebuilt=self.is_rebuilt,
            steady=self.requests.keys() if self.is_steady else (),
            shown_ms=self.shown_ms,
        )
        # Messages that repeat are judged separately.
        of_others = {request: asked for request, asked in self.requests.items() if asked not in self.repeated}
        answers = Answers.of(
            answer
            for answer in list(self.answers)
            if answer.id not in self.named and answer.id not in self.requests.keys() - of_others.keys()
        )
        problems += answers.problems(
            of_others, came_out, complete, circumstances, self.conditions, self.delivering.keys() & of_others.keys()
        )
        counts = Counter(answer.id for answer in list(self.answers))
        twice = [request for request in self.requests if counts[request] > 1 or (complete and not counts[request])]
        problems += [f"{request} has {counts[request]} answers" for request in twice]
        problems += self.repeat_problems(time.time_ns() // 1_000_000 - self.repeat_slack_ms if complete else 0)
        problems += too_early(self.sent, self._asked_ms(), list(self.got))
        problems += too_late(answers.made_due_ms(), list(self.got), self.shown_ms)
        problems += answers.misplaced(list(self.got))
        if complete:
            named = [record for record in list(self.got) if record.id in self.named]
            of_names = [answer for answer in list(self.answers) if answer.id in self.named]
            problems += name_problems(self.named.values(), named, of_names, _NAME_SLACK_MS)
        return problems

    def repeat_problems(self, until_ms: int) -> list[str]:
        """Return the problems of messages that repeat. All occurrences due before `until_ms` must have come."""

        def was_down(start_ms: int, end_ms: int) -> bool:
            return any(start_ms <= end and begin <= end_ms for begin, end in self.outages)

        ended = last_numbers(self.requests, list(self.answers))
        return list(schedule_problems(self.repeated, list(self.got), ended, until_ms, was_down, self.horizon_ms))

    def _superseded(self) -> set[str]:
        """Return the messages with a name that a later record has or requests. They may come out, or not."""
        newest = {each.name: each.id for each in sorted(self.named.values(), key=lambda each: each.offset)}
        return self.named.keys() - set(newest.values())

    def _judged(self, complete: bool) -> Verdict:
        environment = Environment(self._partitions, self.shown_ms)
        not_expected = self.cancelled() | self.refused() | (self._superseded() - {record.id for record in self.got})
        sent = as_made_due(self.sent, self._asked_ms(), list(self.got))
        kept = {identity: message for identity, message in sent.items() if identity not in not_expected}
        got = [record for record in list(self.got) if record.id not in self.repeated]
        return judge(kept, got, self._watch.acceptance(), environment, complete)

    def _asked_ms(self) -> dict[str, int]:
        """Return which messages were asked for to be due at once, and when first, epoch ms."""
        latest_first = sorted(
            ((at_ms, self.requests[request]) for request, at_ms in self.delivering.items()), reverse=True
        )
        return {asked: at_ms for at_ms, asked in latest_first}

    def _wait_for_commits(self) -> None:
        """Wait until the judge knows which batch accepted each message: a batch delivers before it is committed.

        The wait is limited, since a job that was killed in between does not commit. The judge does not check the order
        of messages of an unknown batch.
        """
        deadline = time.monotonic() + _COMMIT_S
        received = [message for identity, message in self.sent.items() if identity in self._reader.ids]
        while time.monotonic() < deadline:
            acceptance = self._watch.acceptance()
            if all(acceptance.in_order_from_ms(message) is not None for message in received):
                return
            time.sleep(0.25)
