"""The checks of requests about messages that repeat: each has one answer, which agrees with the occurrences that came.

A cancel ends a schedule, by an id or a name, and so does a message that takes its name over. The answer has the number
of the last occurrence, and as many must come. A schedule that is not cancelled must come to its end by its rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from streaming.judge.record import Received
from streaming.judge.schedules import DUE_HEADER, Repeated, left_of

_NO_SUCH_NAME = "no-such-name"
# The result of an answer for each reason. Other reasons are about replacements by id, or about deleted records.
_REASONS = {
    "withdrawn": "cancelled",
    "already-cancelled": "cancelled",
    "released": "too-late",
    "undecided": "unknown",
    _NO_SUCH_NAME: "unknown",
    "repeats": "kept",
}

# Only to a request for delivery now, and only to another one.
_OF_DELIVERIES, _OF_CANCELS = ("repeats", "already-cancelled"), ("withdrawn",)


@dataclass(frozen=True)
class Request:
    """A record that asks for the end of a message that repeats, or for its delivery now.

    - `id`: `topic/partition/offset` of the record
    - `asked`: the id of the message; or None, and the `name` of the message
    - `delivers`: whether it asks for delivery now, which ends nothing
    - `waited_from_ms`: what was due then or later (epoch ms) was not staged when the job read it; None: not known
    - `staged_below_ms`: what was due earlier, of messages of earlier batches, was staged then; None: not known

    It is in the partition of the message, and all records of a name are in one partition.
    """

    id: str
    asked: str | None = None
    name: str = ""
    delivers: bool = False
    waited_from_ms: int | None = None
    staged_below_ms: int | None = None

    def may_end(self, message: Repeated) -> bool:
        """Return whether it ends `message`, if that has not ended before."""
        if self.delivers:
            return False
        if self.asked is not None:
            return self.asked == message.id
        return self.name == message.name and _offset(message.id) < _offset(self.id)


def ending_problems(
    repeated: Mapping[str, Repeated],
    requests: Iterable[Request],
    received: Iterable[Received],
    answers: Iterable[Received],
    was_down: Callable[[int, int], bool],
) -> Iterator[str]:
    """Yield what is wrong, a sentence each, once everything has come and each schedule was cancelled or has ended.

    Args:
        repeated: the messages, by id.
        requests: the requests about them; also messages that take a name over, and ask for an answer.
        received: all records of output topics.
        answers: the answers to the requests.
        was_down: as of `streaming.judge.schedules.schedule_problems`.
    """
    dues: dict[str, list[int]] = {identity: [] for identity in repeated}
    for record in received:
        if record.id in dues:
            dues[record.id].append(int(record.last(DUE_HEADER) or -1))
    contents: dict[str, list[dict[str, Any]]] = {}
    for answer in answers:
        contents.setdefault(answer.id, []).append(json.loads(answer.value or b"{}"))
    known = {request.id: request for request in requests}
    yield from (f"{each} was answered, and asked for nothing" for each in contents.keys() - known.keys())
    over = {identity for identity, message in repeated.items() if _is_over(message, dues[identity], was_down)}
    lasts: dict[str, set[int]] = {}
    cancelled: set[str] = set()
    for own in (content for each in contents.values() for content in each if content.get("result") == "cancelled"):
        cancelled.add(own["id"])
        if own.get("occurrence") is not None:
            lasts.setdefault(own["id"], set()).add(own["occurrence"])
    by_name: dict[str, list[Repeated]] = {}
    for message in repeated.values():
        by_name.setdefault(message.name, []).append(message)
    ended: set[str] = set()
    for request in sorted(known.values(), key=lambda each: _offset(each.id)):
        own_contents = contents.get(request.id, [])
        if len(own_contents) != 1:
            yield f"{request.id} has {len(own_contents)} answers"
            continue
        if request.asked is None:
            about = [message for message in by_name.get(request.name, ()) if request.may_end(message)]
        else:
            about = [repeated[request.asked]]
        yield from _of_answer(request, own_contents[0], about, over | cancelled)
        yield from _not_ended(request, about, dues)
        ends = [message for message in about if request.may_end(message) and message.id not in ended]
        ended.update(message.id for message in ends)
        yield from _stopped(request, ends, dues, was_down)
    for identity, came in dues.items():
        numbers = lasts.get(identity, set())
        if identity not in cancelled and identity not in over:
            yield f"{identity} came {len(came)} times, and neither has ended by its rule nor was cancelled"
        elif identity in cancelled and numbers != {len(came)}:
            yield f"{identity} came {len(came)} times, and was answered to have come {sorted(numbers)} times"


def _is_over(message: Repeated, dues: list[int], was_down: Callable[[int, int], bool]) -> bool:
    """Return whether nothing comes after `dues` (epoch ms), by the rule."""
    if message.most is not None and len(dues) >= message.most:
        return True
    return message.until_ms is not None and not left_of(message, dues, message.until_ms + 1, was_down)


def _of_answer(request: Request, content: Mapping[str, Any], about: list[Repeated], ended: set[str]) -> Iterator[str]:
    """Yield what is wrong with an answer. The request is `about` these messages. Those `ended` may wait no more."""
    result, reason, asked = content.get("result"), content.get("reason"), content.get("id")
    said = f"{request.id} is answered {result} ({reason}) about {asked}"
    if _REASONS.get(str(reason)) != result:
        yield f"{said}, which cannot be"
    if (asked is None) != (reason == _NO_SUCH_NAME) or (asked is None and request.asked is not None):
        yield f"{said}, and asks for {request.asked or request.name}"
    if asked is not None and asked not in {message.id for message in about}:
        yield f"{said}, and asks for {request.asked or request.name}"
    if reason in (_OF_DELIVERIES if not request.delivers else _OF_CANCELS):
        yield f"{said}, to {'a delivery now' if request.delivers else 'a cancel'}"
    if result in ("too-late", "unknown"):
        # Without an id, all that had the name must have ended.
        waits = [message.id for message in about if asked in (None, message.id) and message.id not in ended]
        if waits:
            yield f"{said}, and {waits[0]} continues"


def _not_ended(request: Request, about: list[Repeated], dues: Mapping[str, list[int]]) -> Iterator[str]:
    """Yield which occurrences came that had not been staged when the job read the request."""
    from_ms = request.waited_from_ms
    for message in about:
        if from_ms is None or not request.may_end(message):
            continue
        if after := [due_ms for due_ms in dues[message.id] if due_ms >= from_ms]:
            yield f"{message.id} came at {after[:3]}, and {request.id} had ended it before {from_ms}"


def _stopped(
    request: Request, ends: list[Repeated], dues: Mapping[str, list[int]], was_down: Callable[[int, int], bool]
) -> Iterator[str]:
    """Yield which occurrences of the messages that the request `ends` did not come, and were to be staged before."""
    for message in ends:
        below_ms, since_ms = request.staged_below_ms, message.staged_below_ms
        if below_ms is None or since_ms is None or since_ms >= below_ms:
            continue
        # A new one may begin after what one of its name and expression had staged.
        if message.name and message.cron and not dues[message.id]:
            continue
        if left := left_of(message, dues[message.id], below_ms, was_down):
            yield f"nothing came of {message.id} at {left[:3]}, before {request.id} ended it"


def _offset(identity: str) -> int:
    return int(identity.rpartition("/")[2])
