"""The reasons of answers to requests: codes for programs, and sentences for people.

A code never changes, and no program decides by a sentence. docs/publish/cancelling.md documents the codes.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

Result = Literal["cancelled", "due-now", "too-late", "unknown", "kept"]
RESULTS: tuple[Result, ...] = get_args(Result)


class Reason(Enum):
    """The reason of an answer: its `code`, the `result` that it goes with, and the sentence `why`, if any."""

    WITHDRAWN = ("withdrawn", "cancelled", None)
    RECALLED = ("recalled", "cancelled", "it was staged, and a release process recalled it")
    ALREADY_CANCELLED = (
        "already-cancelled",
        "cancelled",
        "another request cancelled it, or it was itself refused, so there is nothing to replace or deliver",
    )
    MADE_DUE = ("made-due", "due-now", None)
    RELEASED = ("released", "too-late", "it is delivered or about to be, or it went to the dead-letter topic")
    NO_INPUT_TOPIC = ("no-input-topic", "unknown", "the job does not read an input topic of this name")
    NOT_READ = (
        "not-read",
        "unknown",
        "the job has not read it yet. Send the request again, or publish it to the message's partition",
    )
    RECORD_DELETED = (
        "record-deleted",
        "unknown",
        "it does not wait, and it is too old to know whether it was cancelled: its record is deleted or "
        "older than cancels.known_for, or the recalled topic was lost since then",
    )
    STAGED = (
        "staged",
        "unknown",
        "it is staged, delivered or a dead letter: too late to replace it",
    )
    UNDECIDED = (
        "undecided",
        "unknown",
        "it is staged, and another request may have cancelled it. Send the request again",
    )
    CHECKPOINT_LOST = (
        "checkpoint-lost",
        "unknown",
        "the job's checkpoint was lost before this was answered. A cancel by name may already be done. Send the "
        "request again",
    )
    NO_SUCH_NAME = (
        "no-such-name",
        "unknown",
        "no message has this name: none had it, or the one that had it is delivered",
    )
    REPEATS = ("repeats", "kept", "it repeats, and its next occurrence comes in its time")
    NAME_KEPT = ("name-kept", "kept", "it keeps the name until it is due, so the new message is dropped")

    def __init__(self, code: str, result: Result, why: str | None) -> None:
        self.code = code
        self.result: Result = result
        self.why = why


def reasons_for(
    outcomes: npt.NDArray[Any], delivers: npt.NDArray[np.bool_], is_refused: npt.NDArray[np.bool_]
) -> npt.NDArray[Any]:
    """Return the reason of each answer, by the outcome for the message and by the kind of the request.

    Args:
        outcomes: the outcome for each message, as the reason of the request that brought it about.
        delivers: which requests want their message to be due at once.
        is_refused: which requests come with a message that is refused.
    """
    is_cancelled = (outcomes == Reason.WITHDRAWN) | (outcomes == Reason.RECALLED)
    is_made_due = outcomes == Reason.MADE_DUE
    reasons = outcomes.copy()
    reasons[is_cancelled & (delivers | is_refused)] = Reason.ALREADY_CANCELLED
    reasons[is_made_due & ~delivers] = Reason.RELEASED
    # A request that would replace it only if it waits comes too late as well.
    reasons[is_made_due & is_refused] = Reason.STAGED
    return reasons
