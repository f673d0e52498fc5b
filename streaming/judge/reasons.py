"""The checks of answers: each has a reason for its result, which agrees with the known facts about the message.

`docs/publish/cancelling.md` has the reasons. A service that answers everything with `unknown` or `too-late` is found by
messages for which that cannot be true. They were published before, in the partition of the request. Or they are due so
late that nobody can have staged them, or written them to their topic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from streaming.judge.record import Published

# The share of requests for staged messages that may be answered with `UNSURE` although nothing restarted: a release
# process may hold a transaction open for longer than the job waits for it. A few requests are too few to judge.
MOST_UNSURE, _LEAST_REQUESTS = 0.5, 10


class Reason(Enum):
    """The reason of an answer, by its code."""

    WITHDRAWN = "withdrawn"
    RECALLED = "recalled"
    CANCELLED_BEFORE = "already-cancelled"
    MADE_DUE = "made-due"
    RELEASED = "released"
    NO_INPUT = "no-input-topic"
    UNREAD = "not-read"
    DELETED = "record-deleted"
    NOT_REPLACED = "staged"
    UNSURE = "undecided"
    LOST = "checkpoint-lost"


_RESULTS = dict.fromkeys(Reason, "unknown") | {
    Reason.WITHDRAWN: "cancelled",
    Reason.RECALLED: "cancelled",
    Reason.CANCELLED_BEFORE: "cancelled",
    Reason.MADE_DUE: "due-now",
    Reason.RELEASED: "too-late",
}


@dataclass(frozen=True)
class Claim:
    """The answer to the request `request` about the message `asked`: its `result`, and the code of its `reason`.

    `condition` and `accepted` are set for a replacement: its condition, and whether it was accepted. The answer was
    received at `received_ms`, epoch ms. `delivers` says whether the request makes the message due at once.
    `is_made_due` says whether any answer says that it is due.
    """

    request: str
    asked: str
    result: str
    reason: str | None
    condition: str | None
    accepted: bool | None
    received_ms: int
    delivers: bool = False
    is_made_due: bool = False


@dataclass(frozen=True)
class Circumstances:
    """The known facts about a run that may explain an answer.

    - `inputs`: the input topics of the job
    - `messages`: the published messages, by id
    - `horizon_ms`: how long before it is due a message is staged at the earliest (`clock.horizon`)
    - `written_ms`: how long before it is due a message is written to its topic at the earliest (`release.lead` and
      `release.slice`)
    - `keeps_records`: whether the input topics have all records still
    - `is_rebuilt`: whether the checkpoint was lost, and `delayline rebuild` has made another one
    - `steady`: requests such that from their publication to the answer no release process and no broker restarted, and
      no answer was lost
    - `shown_ms`: as in `streaming.judge.contract.Environment`
    """

    inputs: Collection[str]
    messages: Mapping[str, Published] = field(default_factory=lambda: MappingProxyType({}))
    horizon_ms: int = 60_000
    written_ms: int = 120
    keeps_records: bool = True
    is_rebuilt: bool = False
    steady: Collection[str] = frozenset()
    shown_ms: Callable[[int], int] = lambda now_ms: now_ms

    def is_ahead(self, claim: Claim, by_ms: int) -> bool:
        """Return whether the message of `claim` was certainly due more than `by_ms` after the answer.

        A message that cannot be scheduled goes to the dead-letter topic at once, and one that is made due may come out
        at any time.
        """
        message = self.messages.get(claim.asked)
        return (
            message is not None
            and not claim.is_made_due
            and message.error is None
            and message.due_ms > self.shown_ms(claim.received_ms) + by_ms
        )


def claim_problems(claims: Iterable[Claim], circumstances: Circumstances) -> Iterator[str]:
    """Yield what is wrong with `claims`, a sentence each."""
    staged = unsure = 0
    for claim in claims:
        reason = next((each for each in Reason if each.value == claim.reason), None)
        is_steady = claim.request in circumstances.steady and claim.asked in circumstances.messages
        staged += is_steady and (reason is Reason.UNSURE or claim.result == "too-late")
        unsure += is_steady and reason is Reason.UNSURE
        if claim.result == "too-late" and circumstances.is_ahead(claim, circumstances.written_ms):
            yield f"{claim.asked} was due long after {claim.request} was answered that it is too late"
        if reason is None or _RESULTS[reason] != claim.result:
            yield f"{claim.request} is answered {claim.result}, which its reason does not explain: {claim.reason}"
        elif _is_wrong(reason, claim, circumstances):
            yield f"{claim.request} asks for {claim.asked}, and its answer cannot be true: {claim.reason}"
    if staged >= _LEAST_REQUESTS and unsure > MOST_UNSURE * staged:
        yield f"{unsure} of {staged} requests for staged messages are unknown, although no process restarted"


def _is_wrong(reason: Reason, claim: Claim, circumstances: Circumstances) -> bool:
    """Return whether the message is known not to be what `reason` says of it."""
    topic, partition, offset = claim.asked.rsplit("/", 2)
    if (topic in circumstances.inputs) == (reason is Reason.NO_INPUT):
        return True
    if reason is Reason.UNREAD:
        *source, request_offset = claim.request.rsplit("/", 2)
        return source == [topic, partition] and int(offset) < int(request_offset)
    if reason is Reason.DELETED:
        return circumstances.keeps_records
    if reason is Reason.LOST:
        return not circumstances.is_rebuilt
    if reason in (Reason.WITHDRAWN, Reason.CANCELLED_BEFORE):
        return (reason is Reason.CANCELLED_BEFORE) != (claim.delivers or claim.accepted is False)
    if reason is Reason.MADE_DUE:
        return not claim.delivers
    if reason is Reason.RELEASED:
        return False
    if reason is Reason.RECALLED and claim.delivers:
        return True
    is_not_for_it = reason is Reason.NOT_REPLACED and claim.condition != "waiting"
    return is_not_for_it or circumstances.is_ahead(claim, circumstances.horizon_ms)
