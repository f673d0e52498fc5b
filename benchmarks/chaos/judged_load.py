"""A campaign's application with its load, its subscriber, and the judge's verdict on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from benchmarks.chaos.faults import Fault
from benchmarks.chaos.load import RandomLoad
from benchmarks.chaos.names import NamedRecords
from benchmarks.chaos.published import Records, published_in
from benchmarks.chaos.schedules import Judged, RepeatedRecords
from benchmarks.chaos.spool import Spool
from benchmarks.stand import Stand
from benchmarks.waiting import say
from streaming.judge.acceptance import Acceptance
from streaming.judge.cancels import Answers
from streaming.judge.contract import Environment
from streaming.judge.deliveries import as_made_due, too_early, too_late
from streaming.judge.outputs import Outputs
from streaming.judge.reasons import Circumstances
from streaming.judge.record import Published, Received
from streaming.judge.verdict import Verdict, judge

# The newest messages of the names are due no later than all others, and may come out a little later.
_NAMES_S = 60.0
# The schedules are cancelled at the end. Occurrences that were staged before still come.
_SCHEDULES_S = 240.0


class JudgedLoad:
    """An application on `stand`, to which `load` publishes to two topics, `names` and `schedules` to one each.

    A context manager: it ends the subscribers.

    After `finish`:

    - `published`: the messages, by id; those that requests made due at once as they came out.
    - `received`: all records of output and dead-letter topics.
    - `acceptance`: which batch accepted which message.
    - `verdict`: the judge's, on all messages that are not answered to be cancelled, or not to be accepted.
    - `wrong_answers`: a sentence for each problem of the answers to cancels, replacements and deliver-now requests,
      and of the messages that these requests made due.
    - `wrong_names`: a sentence for each problem of messages that have names, and of cancels by name.
    - `schedules_judged`: the problems of messages that repeat, and their number.
    - `refused`: the number of replacements that are answered not to be accepted.
    - `made_due`: the number of messages that are answered to be due at once.
    """

    published: dict[str, Published]
    acceptance: Acceptance
    verdict: Verdict
    wrong_answers: list[str]
    wrong_names: list[str]
    schedules_judged: Judged
    refused: int
    made_due: int

    def __init__(self, stand: Stand, name: str, seed: int, seconds: float, *settings: str) -> None:
        other, named, repeated = (stand.topic(f"{name}-{of}") for of in ("other", "named", "repeated"))
        named_input, repeated_input = f"{name}-named-in", f"{name}-repeated-in"
        self.application = stand.application(
            name,
            f"topics.input={name}-in,{named_input},{repeated_input}",
            f"topics.allowed_outputs={other},{named},{repeated}",
            *(f"policies.{topic}.names=header" for topic in (named_input, repeated_input)),
            f"policies.{repeated_input}.repeats=true",
            *settings,
        )
        self.received = Spool(stand.folder / f"{name}-received")
        self.load = RandomLoad(stand, self.application.input, (self.application.output, other), seed, seconds)
        self.names = NamedRecords(stand, named_input, named, seed, seconds, self.load.longest_s)
        self.schedules = RepeatedRecords(stand, repeated_input, repeated, seed, seconds)
        self._stand, self._topics = (
            stand,
            [self.application.output, other, self.application.settings.topics.dead_letter],
        )

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._watch = stack.enter_context(self._stand.judge_watch(self.application))
            self._outputs = Outputs(self._stand.bootstrap, self._topics, self.received.append)
            stack.callback(self._outputs.close)
            for other in (self.names, self.schedules):
                other.subscribe()
                stack.callback(other.close)
            self._answers: list[Received] = []
            results = [self.application.settings.results_topic]
            self._results = Outputs(self._stand.bootstrap, results, self._answers.append)
            stack.callback(self._results.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def strike(self, plan: Sequence[Fault], inject: Callable[[Fault], float]) -> list[tuple[Fault, float]]:
        """Publish, inject the faults meanwhile, and return each with the time at which it began (epoch s)."""
        self.load.warm_up()
        begun_s = time.time()
        threads = (self.load, self.names, self.schedules)
        for thread in threads:
            thread.start()
        injected = [(fault, _strike(fault, begun_s, inject)) for fault in plan]
        self._steady_until_ms = min((at_s for _, at_s in injected), default=time.time()) * 1000
        for thread in threads:
            thread.join()
        self.load.wait_for_all(self._outputs, self._answered, lambda: len(self._unexpected()))
        deadline_s = time.monotonic() + _NAMES_S
        while not self.names.complete() and time.monotonic() < deadline_s:
            time.sleep(0.5)
        deadline_s = time.monotonic() + _SCHEDULES_S
        while not self.schedules.complete(self._answers_to(self.schedules.topic)) and time.monotonic() < deadline_s:
            time.sleep(0.5)
        return injected

    def finish(self) -> None:
        """Read to the end, and judge. Duplicates may arrive last: stop what delivers before."""
        self._outputs.drain()
        self.names.drain()
        self.schedules.drain()
        self._results.drain()
        self._watch.drain()
        records = published_in(self._stand, self.application.input, self.load.topic_of)
        count = len(records.messages) + self.load.requests
        if count != self.load.published:
            raise RuntimeError(f"{count} records were published, and not {self.load.published}")
        unexpected = self._unexpected()
        self.published = {each: message for each, message in records.messages.items() if each not in unexpected}
        own = self._other_answers()
        answers = Answers.of(own)
        self.refused = len(answers.refused())
        made_due_ms = answers.made_due_ms()
        self.made_due = len(made_due_ms)
        # Some requests are for requests, which come out as answers.
        came_out = self._outputs.ids | ({answer.id for answer in own} - records.messages.keys())
        circumstances = self._circumstances(records, own)
        self.wrong_answers = [
            *answers.problems(records.requests, came_out, True, circumstances, records.conditions, records.delivering),
            *answers.misplaced(self.received),
            *too_early(records.messages, records.asked_ms, self.received),
            *too_late(made_due_ms, self.received),
        ]
        self.published = as_made_due(self.published, records.asked_ms, self.received)
        self.acceptance = self._watch.acceptance()
        environment = Environment({topic: {count} for topic, count in self._outputs.partitions.items()})
        self.wrong_names = self.names.problems(self._answers_to(self.names.topic), self.acceptance)
        self.schedules_judged = self.schedules.judge(self._answers_to(self.schedules.topic), self.acceptance)
        self.verdict = judge(self.published, self.received, self.acceptance, environment)

    def _circumstances(self, records: Records, answers: Iterable[Received]) -> Circumstances:
        """Return circumstances that may explain `answers`. Release processes keep restarting after the first fault."""
        settings = self.application.settings
        return Circumstances(
            inputs=settings.topics.input,
            messages=records.messages,
            horizon_ms=settings.clock.horizon,
            written_ms=settings.release.lead + settings.release.slice,
            steady={answer.id for answer in answers if answer.received_ms < self._steady_until_ms},
        )

    def _answered(self) -> int:
        self._results.check()
        return len(self._other_answers())

    def _answers_to(self, topic: str) -> list[Received]:
        """Return the answers that came so far to records of an input topic."""
        return [answer for answer in list(self._answers) if answer.id.startswith(f"{topic}/")]

    def _other_answers(self) -> list[Received]:
        """Return the answers that came so far to records of `load`, or to nothing."""
        topics = (f"{self.names.topic}/", f"{self.schedules.topic}/")
        return [answer for answer in list(self._answers) if not answer.id.startswith(topics)]

    def _unexpected(self) -> set[str]:
        """Return the ids of the messages that are answered to be cancelled, or not to be accepted."""
        received = self._other_answers()
        answers = Answers.of(received)
        requested = {answer.id: (answer.key or b"").decode() for answer in received}
        return answers.cancelled(requested) | answers.refused()


def _strike(fault: Fault, begun_s: float, inject: Callable[[Fault], float]) -> float:
    while (ahead_s := begun_s + fault.at_s - time.time()) > 0:
        time.sleep(min(ahead_s, 0.5))
    say(f"{fault.kind}, {fault.lasts_s:g} s")
    return inject(fault)
