"""A model of cancels, replacements and names: what becomes of each message, in sets, without a table or an index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from state.cancel import MessageId


class Record(NamedTuple):
    """A record of an input topic.

    - `due_ms`: when its message is due; None for a cancel. Epoch ms
    - `is_bad`: whether it goes to the dead-letter topic
    - `asked`: the message that it cancels or replaces by its id
    - `condition`: of what replaces another by its id: "waiting" or "always"
    - `name`: of the message; or the one whose message it cancels
    """

    id: MessageId
    due_ms: int | None = None
    is_bad: bool = False
    asked: MessageId | None = None
    condition: str | None = None
    name: str | None = None

    @property
    def asks(self) -> bool:
        """Whether it asks for another message."""
        return not self.is_bad and (self.asked is not None or self.name is not None)


class Answer(NamedTuple):
    """The answer to an ask: which message it is about, None if none; and of a replacement whether it is accepted.

    `result` and `reason` are codes.
    """

    about: MessageId | None
    result: str
    reason: str
    accepted: bool | None = None


@dataclass
class Model:
    """All messages, each in one place, and what the names stand for.

    `waiting` and `handed_over` have due times, epoch ms. `recalled` are those of the cancelled that release processes
    have taken back.
    """

    waiting: dict[MessageId, int] = field(default_factory=dict)
    handed_over: dict[MessageId, int] = field(default_factory=dict)
    out: set[MessageId] = field(default_factory=set)
    cancelled: set[MessageId] = field(default_factory=set)
    recalled: set[MessageId] = field(default_factory=set)
    names: dict[str, tuple[MessageId, int]] = field(default_factory=dict)

    def release(self, now_ms: int) -> None:
        """Let come out what is handed over and due by `now_ms`."""
        due = {each for each, due_ms in self.handed_over.items() if due_ms <= now_ms}
        self.out |= due
        for each in due:
            del self.handed_over[each]

    def batch(
        self, records: Iterable[Record], read: set[MessageId], clock_ms: int, previous_ms: int, cutoff_ms: int
    ) -> dict[MessageId, Answer]:
        """Take in a batch, and return the answer to each of its asks that is for sure to have one.

        Of a message that takes a name over, that is one about a message which is handed over. `read` are all messages
        that the job has read with this batch.
        """
        in_order = sorted(records, key=lambda record: record.id)
        self.out |= {record.id for record in in_order if record.is_bad}
        messages = {record.id: record for record in in_order if record.due_ms is not None and not record.is_bad}
        self.waiting |= {each: record.due_ms or 0 for each, record in messages.items()}
        asked = self._asked(in_order, min(clock_ms, previous_ms))
        # All of them at once: the first ask for each has cancelled it.
        first: dict[MessageId, MessageId] = {}
        for ask, about in asked.items():
            if about in self.waiting:
                first.setdefault(about, ask)
        waited = set(self.waiting)
        for about in first:
            del self.waiting[about]
            self.cancelled.add(about)
        accepted = self._accepted(messages, first)
        for each, record in messages.items():
            if record.condition is not None and each not in accepted:
                self.waiting.pop(each, None)
                self.cancelled.add(each)
        # What release processes take back for this batch, they do after it has decided.
        known = frozenset(self.cancelled)
        answers = {}
        for ask, about in asked.items():
            own = messages.get(ask)
            is_gone = about in read and about not in waited and about not in known
            if own is not None and own.condition is None:
                if is_gone:
                    answers[ask] = Answer(about, *self._recall(about))
                continue
            is_accepted = None if own is None else ask in accepted
            if about in known:
                reason = "already-cancelled" if is_accepted is False else "withdrawn"
                answers[ask] = Answer(about, "cancelled", reason, is_accepted)
            elif is_gone and (own is None or own.condition == "always"):
                answers[ask] = Answer(about, *self._recall(about), is_accepted)
            else:
                answers[ask] = Answer(about, "unknown", self._why_unknown(about, is_gone), is_accepted)
        for each, due_ms in list(self.waiting.items()):
            if due_ms < cutoff_ms:
                self.handed_over[each] = self.waiting.pop(each)
        return answers

    def _asked(self, in_order: list[Record], free_ms: int) -> dict[MessageId, MessageId | None]:
        """Return which message each record asks for, and let the messages have their names."""
        asked: dict[MessageId, MessageId | None] = {}
        before = {name for name, (_, due_ms) in self.names.items() if due_ms < free_ms}
        for name in before:
            del self.names[name]
        for record in in_order:
            if record.asks and record.name is None:
                asked[record.id] = record.asked
            elif record.asks and record.name is not None:
                asked[record.id] = self.names[record.name][0] if record.name in self.names else None
                if record.due_ms is not None:
                    self.names[record.name] = record.id, record.due_ms
        return asked

    def _accepted(self, messages: dict[MessageId, Record], first: dict[MessageId, MessageId]) -> set[MessageId]:
        """Return the replacements by id that are accepted: of several that hang on each other from the first on."""
        replacing = {each: record for each, record in messages.items() if record.condition is not None}
        accepted = {each for each, record in replacing.items() if record.condition == "always"}
        while more := {
            each
            for each, record in replacing.items()
            if each not in accepted
            and record.asked is not None
            and first.get(record.asked) == each
            and (record.asked not in replacing or record.asked in accepted)
        }:
            accepted |= more
        return accepted

    @staticmethod
    def _why_unknown(about: MessageId | None, is_gone: bool) -> str:
        if about is None:
            return "no-such-name"
        if is_gone:
            return "handed-over"
        return "no-input-topic" if about[0] == "other" else "not-read"

    def _recall(self, about: MessageId | None) -> tuple[str, str]:
        """Return what the release processes answer to an ask for a message that does not wait."""
        if about in self.handed_over:
            del self.handed_over[about]
            self.cancelled.add(about)
            self.recalled.add(about)
        return ("cancelled", "recalled") if about in self.recalled else ("too-late", "released")
