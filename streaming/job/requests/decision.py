"""The decision about the requests of a batch, once the place of each message is known. Nothing is read here.

| the message | the answer |
| --- | --- |
| is in the mutable bucket of its shard, or came in the same batch | `cancelled`: the state stage has taken it out |
| is sealed, and not staged | `cancelled`: its id is stored, and takes it out of each window and merge |
| was already cancelled by a batch, or recalled by a release process | `cancelled`, with any waiting one of its id |
| is a replacement that was refused | `cancelled`: its id is stored like the id of a cancelled message |
| was made due at once, by an earlier batch or an earlier request | `too-late` |
| is too old for the job to know | the release processes answer, and `too-late` only if they have it |
| keeps its name, and a new message has the same name | the new one counts as refused; `kept`, if an answer is wanted |
| keeps its due time, and a new message has its name | by its place, as above; the new one is moved to that due time |
| matches no row above | the release processes answer (`sinks.release.recall`): it is staged, or was a dead letter |
| is not read yet, or not from an input topic | `unknown` |

A deliver-now request takes the message out in the same places, if it is the first request for the message. The id of
the message is stored in the same way, with the new due time. The batch stages the message (`state.buckets.moves`). The
answer to this request, and to each later one of its kind, is `due-now`. If the message was already cancelled, the
answer is `cancelled`, as for a cancel request.

A request by a name is one by an id here (`streaming.job.requests.names`). If it came with a message, usually no answer
is wanted. Then it is passed on only if the earlier message is staged, and dropped otherwise.

An accepted replacement is staged or sealed like any message. A refused one counts as cancelled: if its batch has sealed
it, each window and merge leaves it out.

A replay decides the same. The numbers of their buckets tell which messages earlier batches cancelled and sealed. A
message that waits in a bucket stays there until it is staged or cancelled, whatever is merged. The ids that this batch
cancels are stored before any of its answers is staged, so that a rebuild, which has no replay, finds them. Release
processes may have recalled more messages by the time of the replay. An answer may then differ, but no request has
another fate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state.answers import ANSWER_SCHEMA, Undecided
from state.buckets.cancelled import CANCELLED_SCHEMA
from state.buckets.moves import MOVES_SCHEMA, moves_at_once, moves_to
from state.buckets.parts import IdRows
from state.buckets.retimed import RETIMED_SCHEMA
from state.cancel import (
    ALWAYS,
    WAITING,
    MessageId,
    Request,
    Successor,
    comes_with_message,
    in_vain,
    own_ids,
    requests_of,
)
from state.message_ids import Ids, contains_mask, ids_in, ids_of, to_set, union, without
from state.names import NAMED_SCHEMA
from state.reasons import Reason
from state.repeats.waiting import Predecessor
from streaming.job.requests.answers import answers_by
from streaming.job.requests.names import LookedUp
from streaming.job.requests.outcomes import Outcomes
from streaming.job.requests.waiting import NOTHING_WAITS, Waiting


@dataclass(frozen=True)
class Decision:
    """The decision of a batch: its answers, the messages that it cancels, and those that it does not stage.

    `answers` has the columns of `ANSWER_SCHEMA`, and `cancelled` has the columns of `CANCELLED_SCHEMA`. `left_out` are
    messages that came with the batch and are not staged if they are due now: refused replacements, and other cancelled
    messages. They are among the cancelled messages. `names` are the messages that got a name in the batch
    (`state.names.NAMED_SCHEMA`). `replaced` has the replacement of each message that a replacement has cancelled.
    `drops` says whether any message was dropped because another one keeps its name.
    `moves` are messages that get another due time (`state.buckets.moves.MOVES_SCHEMA`). Those that become due at once
    are among the cancelled messages, although the batch does not cancel them. `replaced` has the due time of each. The
    others are `retimed`: messages of the batch that take over the due time of another one (`RETIMED_SCHEMA`).
    `places` has the places of those that are in the table. `predecessors` has the waiting message that repeats for each
    new one that takes its place and repeats too.
    """

    answers: pa.Table = field(default_factory=ANSWER_SCHEMA.empty_table)
    cancelled: pa.Table = field(default_factory=CANCELLED_SCHEMA.empty_table)
    left_out: Ids = field(default_factory=dict)
    names: pa.Table = field(default_factory=NAMED_SCHEMA.empty_table)
    replaced: Mapping[MessageId, Successor] = field(default_factory=dict)
    moves: pa.Table = field(default_factory=MOVES_SCHEMA.empty_table)
    retimed: pa.Table = field(default_factory=RETIMED_SCHEMA.empty_table)
    places: Waiting = NOTHING_WAITS
    drops: bool = False
    predecessors: Mapping[MessageId, Predecessor] = field(default_factory=dict)

    @property
    def stored(self) -> dict[IdRows, int]:
        """How many ids of each kind the batch stores."""
        tables = {IdRows.CANCELLED: self.cancelled, IdRows.NAMED: self.names, IdRows.RETIMED: self.retimed}
        return {kind: table.num_rows for kind, table in tables.items()}

    @property
    def made_due(self) -> int:
        """How many messages the batch makes due at once."""
        return int(self.moves.num_rows - self.retimed.num_rows)

    @property
    def cancels(self) -> int:
        """How many messages the batch cancels."""
        return int(self.cancelled.num_rows - self.made_due)

    def shows(self, cutoff_ms: int) -> bool:
        """Return whether the messages staged below `cutoff_ms` (epoch ms) reveal a cancel of this batch.

        An answer reveals it, and so does a message in favour of which another one is cancelled. Then the ids must be
        stored first: otherwise a rebuild would not know the cancel, and would deliver the cancelled message as well.
        Dropped messages always count. The message that keeps its name may be staged long before. After a rebuild, no
        message would have the name, and the dropped one would come out. Moved messages always count too. They would
        come out again, by the due times of their records.
        """
        if self.drops or self.moves.num_rows:
            return True
        if not self.cancelled.num_rows:
            return False
        is_told = pc.any(pc.is_valid(self.answers.column("value"))).as_py()
        return bool(is_told or pc.any(pc.less(self.names.column("deliver_at_ms"), cutoff_ms)).as_py())


class Facts(NamedTuple):
    """The facts about the messages that the requests of a batch are for.

    - `outcomes`: the messages that the batch cancels, and those that were cancelled before
    - `named`: the result of looking up the names
    - `due_now`: the taken messages that this batch might otherwise seal or stage (`CANCELLED_SCHEMA`)
    - `recalled`: the messages that release processes have recalled
    - `known_from`: the offset of each input partition from which on nothing is forgotten
    - `replaced_before`: the messages that a lost batch has replaced, with the ids of their replacements
    - `numbers`: the number of the occurrence that waited, for each message that repeats
    - `waits`: the messages that wait in the table, and which of them repeat
    - `due_at_once_ms`: the due time of messages that the batch makes due at once, epoch ms
    """

    outcomes: Outcomes
    named: LookedUp
    due_now: pa.Table
    recalled: Ids
    known_from: Mapping[tuple[str, int], int]
    replaced_before: Mapping[MessageId, MessageId]
    numbers: Mapping[MessageId, int]
    waits: Waiting
    due_at_once_ms: int


def decide(requests: pa.Table, facts: Facts, undecided: Undecided) -> Decision:
    """Decide `requests` (`REQUEST_SCHEMA`). A request by a name that no message has is for `NOTHING`.

    `undecided` takes the place of an answer if the release processes must decide.
    """
    outcomes, dropped, repeating = facts.outcomes, facts.named.dropped, ids_of(facts.numbers)
    # By these, a replay has the same number of answers, whatever was recalled since.
    not_waiting = outcomes.open_ids()
    outcomes.set(facts.recalled, Reason.WITHDRAWN)
    own = requests.filter(pa.array(~in_vain(requests, repeating))).filter(pc.field("offset") >= 0)
    # The first request for a message decides. Among cancels alone, it does not matter which one is first.
    replacements = own.filter(pa.array(comes_with_message(own)))
    every = requests_of(own) if replacements.num_rows or pc.any(own.column("delivers")).as_py() else []
    found, dropped_ids = ids_in(outcomes.taken), ids_in(own_ids(dropped))
    first = first_requests(every, to_set(found)) if every else {}
    are_dropped = to_set(dropped_ids)
    at_once = {asked for asked, request in first.items() if request.delivers} - are_dropped
    causes = {asked: request for asked, request in first.items() if asked not in at_once}
    accepted = accepted_replacements(every, causes, facts.replaced_before, are_dropped)
    accepted_ids = ids_of(accepted)
    refused = without(ids_in(own_ids(replacements)), accepted_ids)
    delivered = without(ids_of(at_once), refused)
    outcomes.take(_as_cancelled(pa.concat_tables([replacements, dropped]), union([found, accepted_ids])))
    outcomes.set(delivered, Reason.MADE_DUE)
    outcomes.close(facts.known_from, repeating)
    outcome = np.append(outcomes.of(requests), [Reason.NAME_KEPT] * dropped.num_rows)
    answers = answers_by(
        pa.concat_tables([requests, dropped]), outcome, not_waiting, accepted_ids, facts.numbers, undecided
    )
    left_out = union([refused, dropped_ids, ids_in(facts.due_now), ids_in(facts.named.superseded)])
    moves = pa.concat_tables([moves_at_once(delivered, facts.due_at_once_ms), moves_to(facts.named.retimed)])
    replaced: dict[MessageId, Successor] = dict.fromkeys(to_set(delivered), facts.due_at_once_ms)
    # A message with a name is accepted in any case, whatever happened to the message before it.
    replaced |= {
        asked: request.id for asked, request in causes.items() if request.id in accepted and request.name is None
    }
    return Decision(
        answers, outcomes.taken, without(left_out, delivered), facts.named.names, replaced, moves,
        facts.named.retimed, facts.waits.only(delivered), dropped.num_rows > 0,
        _predecessors(own, facts.waits.repeating),
    )  # fmt: skip


def first_requests(requests: Iterable[Request], found: Collection[MessageId]) -> dict[MessageId, Request]:
    """Return the first of `requests`, in the order of their ids, for each message that is `found`."""
    first: dict[MessageId, Request] = {}
    for request in sorted(requests, key=lambda request: request.id):
        if request.asked in found:
            first.setdefault(request.asked, request)
    return first


def accepted_replacements(
    requests: Iterable[Request],
    causes: Mapping[MessageId, Request],
    replaced: Mapping[MessageId, MessageId],
    dropped: Collection[MessageId],
) -> set[MessageId]:
    """Return the ids of the replacements among all `requests` of a batch that the batch accepts.

    `causes` has the messages that the batch cancels, and the first request for each. `replaced` has the replacement
    that a lost batch accepted for each message that it took out. Messages that are `dropped` have no requests here, and
    are not accepted.

    A replacement on the condition `WAITING` is accepted if it has cancelled a message. If that message is a replacement
    of the same batch, it must have been accepted itself. In a cycle of replacements, none is accepted.
    """
    conditions = {request.id: request.condition for request in requests if request.condition is not None}
    accepted = {own for own, condition in conditions.items() if condition == ALWAYS}
    # Messages that the batch has taken out take precedence: if a topic was created again, another message may have the
    # id.
    first = {**replaced, **{asked: request.id for asked, request in causes.items()}}
    left = {asked: own for asked, own in first.items() if conditions.get(own) == WAITING}
    accepted_before = (asked for asked in left if asked not in conditions and asked not in dropped)
    rest = [*accepted, *accepted_before]
    while rest:
        if (own := left.pop(rest.pop(), None)) is not None:
            accepted.add(own)
            rest.append(own)
    return accepted


def _as_cancelled(requests: pa.Table, but: Ids) -> pa.Table:
    """Return the messages that `requests` came with (`CANCELLED_SCHEMA`), without `but`."""
    own, due = own_ids(requests), requests.column("deliver_at_ms")
    messages = pa.table([*own.columns, due, due], schema=CANCELLED_SCHEMA)
    return messages.filter(pa.array(~contains_mask(messages, but)))


def _predecessors(requests: pa.Table, repeating: Mapping[MessageId, Predecessor]) -> dict[MessageId, Predecessor]:
    """Return the predecessor of each message that repeats and came with one of `requests` (`REQUEST_SCHEMA`).

    If it replaces another message of the batch, which never came out, it has the predecessor of that message.
    """
    found: dict[MessageId, Predecessor] = {}
    if repeating:
        for request in sorted(
            requests_of(requests.filter(requests.column("repeats").fill_null(False))), key=lambda each: each.id
        ):
            before = found.get(request.asked, repeating.get(request.asked))
            if before is not None:
                found[request.id] = before
    return found
