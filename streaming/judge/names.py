"""The checks of names: which of the messages that have a name come out, and whether the answers agree with that.

Where they replace each other, the newest does. Where they keep their names, a message does unless one before it did so
later than it was published. Where they keep their due times, the newest does when the first one was due.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from streaming.judge.record import Received

# The mode of an input topic: the fate of a message that waits under a name, once another message takes the name.
REPLACE, KEEP, KEEP_TIME = "replace", "keep", "keep-time"
_DUE_HEADER = "delayline-deliver-at"
# A due time that was taken over may be moved by a millisecond each time.
_MOST_MOVED_MS = 20


@dataclass(frozen=True)
class Named:
    """A record that was published with a name: a message that is due at `due_ms`, or a cancel (None). In epoch ms.

    The job knows the record since `known_ms`: when it was published, or when its batch was committed. A message
    due at `waited_from_ms` or later waited when the job read the record, so it cannot come out any more; None: unknown.
    A message that no other had replaced must have come out by `out_by_ms`; None: unknown.

    All records of a name are in one partition.
    """

    id: str
    name: str
    known_ms: int
    due_ms: int | None
    waited_from_ms: int | None = None
    out_by_ms: int | None = None

    @property
    def offset(self) -> int:
        """The offset of the record."""
        return int(self.id.rpartition("/")[2])


def name_problems(
    records: Iterable[Named],
    came_out: Iterable[Received],
    answers: Iterable[Received],
    slack_ms: int,
    mode: str = REPLACE,
) -> list[str]:
    """Return what is wrong, a sentence each, once everything that should come out has done so.

    `answers` are the records of the results topic. A message may come out although another took its name over if it was
    due within `slack_ms` after the job knew of that one. `mode` is the mode of the input topic. With `KEEP`, two may
    come out if the first was due within `slack_ms` after the job knew of the second.
    """
    problems: list[str] = []
    deliveries: dict[str, list[Received]] = {}
    for delivery in came_out:
        deliveries.setdefault(delivery.id, []).append(delivery)
    results: dict[str, list[tuple[str | None, str]]] = {}
    for answer in answers:
        content = json.loads(answer.value or b"{}")
        results.setdefault(answer.id, []).append((content.get("id"), content.get("result")))
    known = {record.id: record for record in records}
    problems += [f"{each} came out, and was never published" for each in deliveries.keys() - known.keys()]
    problems += [f"{each} has an answer, and asked for nothing" for each in results.keys() - known.keys()]
    for record in known.values():
        own = deliveries.get(record.id, [])
        due_ms = record.due_ms
        if len(own) > 1:
            problems.append(f"{record.id} came out {len(own)} times")
        if mode == KEEP_TIME:
            # Which one it may be is judged below.
            due_ms = _due_ms(record, deliveries)
        if own and (due_ms is None or own[0].received_ms < due_ms):
            problems.append(f"{record.id} is due at {due_ms}, and came out at {own[0].received_ms}")
        if len(results.get(record.id, [])) not in ({1} if record.due_ms is None else {0, 1}):
            problems.append(f"{record.id} has the answers {results.get(record.id)}")
    by_name = sorted(known.values(), key=lambda record: (record.name, record.offset))
    for name, several in groupby(by_name, key=lambda record: record.name):
        in_order = list(several)
        if mode == KEEP:
            problems += _of_kept_name(name, in_order, deliveries, results, slack_ms)
        else:
            if mode == KEEP_TIME:
                problems += _of_kept_time(name, in_order, deliveries)
                in_order = [replace(each, due_ms=_due_ms(each, deliveries)) for each in in_order]
            problems += _of_name(name, in_order, deliveries.keys(), results, slack_ms)
        problems += _of_answers(name, in_order, deliveries.keys(), results)
    return problems


def _of_name(
    name: str,
    in_order: list[Named],
    came_out: Iterable[str],
    results: dict[str, list[tuple[str | None, str]]],
    slack_ms: int,
) -> Iterator[str]:
    out = set(came_out)
    last = in_order[-1]
    if last.due_ms is not None and last.id not in out:
        yield f"{last.id}, the newest message under {name}, did not come out"
    for before, after in pairwise(in_order):
        too_late = before.due_ms is not None and before.due_ms > after.known_ms + slack_ms
        if before.id in out and too_late:
            yield f"{before.id} came out, although {after.id} took over {name} long before it was due"
        elif before.id in out and _waited(before, after):
            yield f"{before.id} came out, although it waited when the job read {after.id}, which asks for {name}"
        elif before.id not in out and before.out_by_ms is not None and before.out_by_ms < after.known_ms:
            yield f"{before.id} did not come out, and {after.id} took over {name} long after it was due"
        answered = results.get(after.id, [])
        if after.due_ms is None and before.due_ms is not None and before.id not in out and not _is_cancelled(answered):
            yield f"{before.id} did not come out, and {after.id}, which asks for {name}, was answered {answered}"


def _of_kept_name(
    name: str,
    in_order: list[Named],
    deliveries: Mapping[str, list[Received]],
    results: Mapping[str, list[tuple[str | None, str]]],
    slack_ms: int,
) -> Iterator[str]:
    cancelled = {asked: record.offset for record in in_order for asked, result in results.get(record.id, [])
                 if result == "cancelled"}  # fmt: skip
    since_cancel: list[Named] = []
    before: list[Named] = []
    for record in in_order:
        if record.due_ms is None:
            since_cancel = []
            continue
        if record.id in deliveries:
            for other in since_cancel:
                if other.id in deliveries and (other.due_ms or 0) > record.known_ms + slack_ms:
                    yield f"{record.id} came out, although {other.id} kept {name}, and was due long after that"
        elif record.id not in cancelled:
            # One that came out when it was published already would be no reason to drop it.
            is_kept = any(
                deliveries[other.id][0].received_ms >= record.known_ms
                if other.id in deliveries
                else cancelled.get(other.id, -1) > record.offset
                for other in before
            )
            if not is_kept:
                yield f"{record.id} did not come out, and no message before it kept {name}"
        before.append(record)
        since_cancel.append(record)


def _of_kept_time(name: str, in_order: list[Named], deliveries: Mapping[str, list[Received]]) -> Iterator[str]:
    """Yield each message that came out at the due time of neither itself nor one that it can have replaced."""
    # When the message before may be due, if there is one since the last cancel; and whether it came out.
    before: set[int] = set()
    came_out = False
    for record in in_order:
        if record.due_ms is None:
            before = set()
            continue
        # One that was due when the next was published has no due time to give, unless the job did not run.
        is_free = came_out or not before or min(before) <= record.known_ms
        may_be = before | ({record.due_ms} if is_free else set())
        came_out = record.id in deliveries
        if came_out:
            due_ms = _due_ms(record, deliveries) or 0
            if not any(0 <= due_ms - each <= _MOST_MOVED_MS for each in may_be):
                yield f"{record.id} was due at {due_ms}, and by the messages under {name} at one of {sorted(may_be)}"
            may_be = {due_ms}
        before = may_be


def _due_ms(record: Named, deliveries: Mapping[str, list[Received]]) -> int | None:
    """Return when a message was due, epoch ms: as its delivery says, or its record; None for a cancel."""
    own = deliveries.get(record.id)
    return record.due_ms if record.due_ms is None or not own else int(own[0].last(_DUE_HEADER) or record.due_ms)


def _of_answers(
    name: str, in_order: list[Named], came_out: Iterable[str], results: Mapping[str, list[tuple[str | None, str]]]
) -> Iterator[str]:
    out = set(came_out)
    messages = {record.id: record.offset for record in in_order if record.due_ms is not None}
    for record in in_order:
        for asked, result in results.get(record.id, []):
            if asked is None and result == "unknown":
                continue
            if asked not in messages or messages[asked] >= record.offset:
                yield f"{record.id} asks for {name}, and was answered for {asked}"
            if result == "kept" and record.id in out:
                yield f"{record.id} came out, and was answered to be dropped"
            if result == "cancelled" and asked in out:
                yield f"{asked} came out, and was answered to be cancelled"
            if result == "too-late" and asked not in out:
                yield f"{asked} did not come out, and was answered to be too late"


def _waited(before: Named, after: Named) -> bool:
    """Return whether the message `before` certainly waited when the job read `after`, even if long overdue."""
    return before.due_ms is not None and after.waited_from_ms is not None and before.due_ms >= after.waited_from_ms


def _is_cancelled(answers: list[tuple[str | None, str]]) -> bool:
    """Return whether one of `answers` says that the message was cancelled."""
    return any(result == "cancelled" for _, result in answers)
