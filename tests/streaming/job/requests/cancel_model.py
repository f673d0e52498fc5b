"""A model of cancels, replacements, names and schedules: the fate of each message, without a table or an index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from state.cancel import MessageId
from tests.streaming.job.requests.cancel_records import Answer, Holder, Occurrence, Plan, Record

DUE_NOW, TOO_LATE = ("due-now", "made-due"), ("too-late", "released")


@dataclass
class Model:
    """All messages, each in one place, and the holders of the names.

    `waiting` and `staged` have due times, epoch ms. `recalled` has the cancelled messages that release processes
    have recalled, and `delivered` the messages that a batch has made due at once. `plans` has the messages that repeat,
    with the number of the occurrence that waits.
    """

    waiting: dict[MessageId, int] = field(default_factory=dict)
    staged: dict[MessageId | Occurrence, int] = field(default_factory=dict)
    out: set[MessageId | Occurrence] = field(default_factory=set)
    cancelled: set[MessageId] = field(default_factory=set)
    recalled: set[MessageId] = field(default_factory=set)
    delivered: set[MessageId] = field(default_factory=set)
    names: dict[str, Holder] = field(default_factory=dict)
    plans: dict[MessageId, tuple[Plan, int]] = field(default_factory=dict)

    def release(self, now_ms: int) -> None:
        """Let staged messages that are due by `now_ms` come out."""
        due = {each for each, due_ms in self.staged.items() if due_ms <= now_ms}
        self.out |= due
        for each in due:
            del self.staged[each]

    def batch(
        self, records: Iterable[Record], read: set[MessageId], clock_ms: int, previous_ms: int, cutoff_ms: int
    ) -> dict[MessageId, Answer]:
        """Take in a batch, and return the answers that its requests certainly get, by request.

        A message with a name gets one if it asks for it, or if it takes the name over from a staged message. `read` are
        all messages that the job has read with this batch.
        """
        in_order = sorted(records, key=lambda record: record.id)
        self.out |= {record.id for record in in_order if record.is_bad}
        messages = {record.id: record for record in in_order if record.due_ms is not None and not record.is_bad}
        self.waiting |= {each: record.due_ms or 0 for each, record in messages.items()}
        self.plans |= {each: (record.plan, 1) for each, record in messages.items() if record.plan is not None}
        asked, dropped, taken_ms = self._asked(in_order, clock_ms, previous_ms)
        self.waiting |= taken_ms
        # All of them at once: the first request for each has cancelled it, or made it due.
        first: dict[MessageId, MessageId] = {}
        delivering = {record.id for record in in_order if record.delivers}
        for request, about in asked.items():
            # A message that repeats comes at its own time.
            if about in self.waiting and not (request in delivering and about in self.plans):
                first.setdefault(about, request)
        waited = dict(self.waiting)
        for about, request in first.items():
            del self.waiting[about]
            (self.delivered if request in delivering else self.cancelled).add(about)
        accepted = self._accepted(messages, first, dropped)
        for each, record in messages.items():
            if each in dropped or (record.condition is not None and each not in accepted):
                self.waiting.pop(each, None)
                self.delivered.discard(each)
                self.cancelled.add(each)
        self.staged |= {
            about: min(waited[about], clock_ms + 1, cutoff_ms - 1) for about in first if about in self.delivered
        }
        # Release processes recall messages for this batch only after it has decided.
        known = frozenset(self.cancelled)
        answers = {
            each: Answer(holder, "kept", "name-kept", False)
            for each, holder in dropped.items()
            if messages[each].wants_answer
        }
        sent: set[MessageId] = set()
        for request, about in asked.items():
            own, delivers = messages.get(request), request in delivering
            is_gone = about in read and about not in waited and about not in known and about not in self.delivered
            if own is not None and own.condition is None and not own.wants_answer:
                if is_gone:
                    answers[request] = Answer(about, *self._recall(about, sent, delivers))
                continue
            is_accepted = None if own is None else request in accepted
            if about in known:
                reason = "already-cancelled" if delivers or is_accepted is False else "withdrawn"
                last = self.plans[about][1] - 1 if about in waited and about in self.plans and not delivers else None
                answers[request] = Answer(about, "cancelled", reason, is_accepted, last)
            elif delivers and about in waited and about in self.plans:
                answers[request] = Answer(about, "kept", "repeats")
            elif about in self.delivered and is_accepted is not False:
                answers[request] = Answer(about, *(DUE_NOW if delivers else TOO_LATE), is_accepted)
            elif about in self.delivered:
                answers[request] = Answer(about, "unknown", "staged", is_accepted)
            elif is_gone and (own is None or own.condition != "waiting"):
                answers[request] = Answer(about, *self._recall(about, sent, delivers), is_accepted)
            else:
                answers[request] = Answer(about, "unknown", self._why_unknown(about, is_gone), is_accepted)
        for each, due_ms in list(self.waiting.items()):
            if due_ms < cutoff_ms:
                del self.waiting[each]
                if each in self.plans:
                    self._repeat(each, due_ms, clock_ms, cutoff_ms)
                else:
                    self.staged[each] = due_ms
        return answers

    def _repeat(self, each: MessageId, due_ms: int, clock_ms: int, cutoff_ms: int) -> None:
        """Stage the occurrences of a message from the one that is due at `due_ms`, and let the next one wait."""
        plan, first = self.plans[each]
        for number, at_ms in plan.comes(first, due_ms, clock_ms):
            due_ms = at_ms
            if at_ms >= cutoff_ms:
                self.plans[each], self.waiting[each] = (plan, number), at_ms
                break
            self.staged[(*each, number)] = at_ms
        for name, holder in self.names.items():
            if holder.id == each:
                self.names[name] = holder._replace(due_ms=due_ms)

    def _asked(
        self, in_order: list[Record], clock_ms: int, previous_ms: int
    ) -> tuple[dict[MessageId, MessageId | None], dict[MessageId, MessageId], dict[MessageId, int]]:
        """Return the message that each record asks for, the dropped messages, and the due times that are taken over.

        A dropped message comes with the message that keeps its name. Lets the messages have their names.
        """
        asked: dict[MessageId, MessageId | None] = {}
        dropped: dict[MessageId, MessageId] = {}
        taken_ms: dict[MessageId, int] = {}
        free_ms = min(clock_ms, previous_ms)
        names = {
            name: each for name, each in self.names.items() if each.due_ms >= free_ms and each.id not in self.delivered
        }
        self.names = names
        own = {record.id for record in in_order}
        # A deliver-now request for a message that repeats is in vain, and does not count as a request for it.
        by_id = {
            record.asked
            for record in in_order
            if record.requests
            and record.name is None
            and not (record.delivers and record.asked in self.plans and record.asked in self.waiting)
        }
        # A message keeps its name until somebody asks for it.
        names |= {name: each._replace(keeps=False) for name, each in names.items() if each.id in by_id}
        for record in in_order:
            if record.requests and record.name is None:
                asked[record.id] = record.asked
            elif record.requests and record.name is not None:
                holder = names.get(record.name)
                if record.keeps and holder is not None and holder.keeps:
                    # A message of the batch may have come out before, if its checkpoint was lost. Another one waits if
                    # it is not staged.
                    since_ms = record.published_ms if holder.id in own else min(previous_ms, record.published_ms)
                    if holder.due_ms >= since_ms or (holder.id in own and holder.id in self.plans):
                        dropped[record.id] = holder.id
                        continue
                    # It is due by the time of the record, and comes out.
                    holder = None
                elif record.takes_time and holder is not None and holder.keeps:
                    is_staged = holder.id not in own and holder.due_ms < previous_ms
                    if is_staged and holder.due_ms < record.published_ms:
                        holder = None
                asked[record.id] = None if holder is None else holder.id
                if record.due_ms is not None:
                    keeps = (record.keeps or record.takes_time) and record.id not in by_id
                    due_ms = record.due_ms
                    if record.takes_time and keeps and holder is not None and holder.keeps:
                        due_ms = taken_ms[record.id] = _apart(holder.due_ms, record, clock_ms)
                    names[record.name] = Holder(record.id, due_ms, keeps)
                elif holder is not None:
                    names[record.name] = holder._replace(keeps=False)
        return asked, dropped, taken_ms

    def _accepted(
        self,
        messages: dict[MessageId, Record],
        first: dict[MessageId, MessageId],
        dropped: dict[MessageId, MessageId],
    ) -> set[MessageId]:
        """Return the accepted messages among those that may be refused. In a chain, each depends on the one before."""
        replacing = {each: record for each, record in messages.items() if record.condition or record.name}
        accepted = {each for each, record in replacing.items() if record.condition != "waiting"} - dropped.keys()
        while more := {
            each
            for each, record in replacing.items()
            if each not in accepted
            and record.condition is not None
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
            return "staged"
        return "no-input-topic" if about[0] == "other" else "not-read"

    def _recall(self, about: MessageId | None, sent: set[MessageId], delivers: bool) -> tuple[str, str]:
        """Return the answer of the release processes to a request for a message that does not wait.

        `sent` are the messages that they have released at once for this batch.
        """
        if about in self.staged:
            del self.staged[about]
            if delivers:
                self.out.add(about)
                sent.add(about)
            else:
                self.cancelled.add(about)
                self.recalled.add(about)
        if about in self.recalled:
            return "cancelled", "already-cancelled" if delivers else "recalled"
        return DUE_NOW if delivers and about in sent else TOO_LATE


def _apart(due_ms: int, record: Record, clock_ms: int) -> int:
    """Return `due_ms`, or the next millisecond if the request of the record is due then, which has the same id."""
    at_once_ms = min(record.published_ms, clock_ms)
    return due_ms + (due_ms == at_once_ms + (at_once_ms == record.due_ms))
