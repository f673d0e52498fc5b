"""What a batch decides about its asks, once it is known where each message is. Nothing is read here.

| the message | the answer |
| --- | --- |
| is in the mutable bucket of its shard, or came in the same batch | `cancelled`: the state stage has taken it out |
| is sealed, and not handed over | `cancelled`: its id is stored, and takes it out of each window and merge |
| was cancelled before by a batch, or recalled by a release process | `cancelled`, with what waits and has the same id |
| is a replacement that was refused | `cancelled`: its id is stored like that of a cancelled message |
| was made due at once, by a batch before or by an ask before this one | `too-late` |
| is older than what the job knows for certain | the release processes answer, and never `too-late` without having it |
| keeps its name, and a new one has the same | the new one counts as refused; `kept`, to whoever wants an answer |
| is none of these | the release processes answer (`sinks.release.recall`): it is handed over, or was a dead letter |
| is not read yet, or of no input topic | `unknown` |

An ask that a message be due at once takes it out in the same places, if it is the first one for the message. Its id is
stored in the same way, with the new due time; and the batch hands it over (`state.buckets.moves`). The answer is
`due-now`, and so is that to each later ask of this kind. Where an ask for a cancel is answered `cancelled` since
someone else has cancelled the message, so is this one.

An ask by a name is one by an id here (`streaming.job.requests.names`). If it came with a message, mostly nobody wants
an answer; then it is passed on only if the message before is handed over, and dropped otherwise.

A replacement that is accepted is handed over or sealed like any message. One that is refused counts as cancelled: if
its batch has sealed it, each window and merge leaves it out.

A replay decides the same. What earlier batches cancelled and sealed is known by the numbers of their buckets. A message
that waits in a bucket stays there until it is handed over or cancelled, whatever is merged. And what this batch cancels
is stored before any of its answers is handed over: a rebuild, which has no replay, finds it. What release processes
have recalled may be more in the replay: an answer may then be another one, but no ask has another fate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from state.buckets.cancelled import CANCELLED_SCHEMA
from state.buckets.moves import MOVES_SCHEMA
from state.cancel import (
    ANSWER_SCHEMA,
    NONE_REPLACED,
    MessageId,
    Successor,
    Undecided,
    accepted_replacements,
    asks_of,
    first_delivered,
    own_ids,
    replaced_by,
    replacement_ids,
)
from state.message_ids import Ids, among, each_of, ids_in, ids_of, table_of, united, without
from state.names import NAMED_SCHEMA
from streaming.job.requests.answers import answers_by, answers_for_kept, answers_for_nothing
from streaming.job.requests.outcomes import Outcomes


@dataclass(frozen=True)
class Decision:
    """What a batch decides: its answers, the messages that it cancels, and what it does not hand over.

    `answers` has the columns of `ANSWER_SCHEMA`, `cancelled` those of `CANCELLED_SCHEMA`. `left_out` are messages that
    came with the batch, and are not handed over if they are due now: replacements that it refuses, and others that are
    cancelled. They are among the cancelled messages. `names` are the messages that got a name in the batch
    (`state.names.NAMED_SCHEMA`). `replaced` has the replacement of each cancelled message that one has cancelled.
    `drops` says whether another message keeps its name from any of them.
    `moves` are those of the cancelled messages that the batch does not cancel, but hands over at once
    (`state.buckets.moves.MOVES_SCHEMA`): `replaced` has for each when it is due.
    """

    answers: pa.Table = field(default_factory=ANSWER_SCHEMA.empty_table)
    cancelled: pa.Table = field(default_factory=CANCELLED_SCHEMA.empty_table)
    left_out: Ids = field(default_factory=dict)
    names: pa.Table = field(default_factory=NAMED_SCHEMA.empty_table)
    replaced: Mapping[MessageId, Successor] = field(default_factory=dict)
    moves: pa.Table = field(default_factory=MOVES_SCHEMA.empty_table)
    drops: bool = False

    def shows(self, cutoff_ms: int) -> bool:
        """Return whether anybody can tell, by what is handed over below `cutoff_ms` (epoch ms), what is cancelled.

        By an answer, or by the message in whose favour something is cancelled. Then it must be stored before: a rebuild
        would not know it, and deliver the cancelled message as well. The message that keeps its name may be handed over
        long before: then nobody has the name after a rebuild, and a message that was dropped would come out.
        """
        if not self.cancelled.num_rows:
            return False
        if self.drops or self.moves.num_rows:
            return True
        is_told = pc.any(pc.is_valid(self.answers.column("value"))).as_py()
        return bool(is_told or pc.any(pc.less(self.names.column("deliver_at_ms"), cutoff_ms)).as_py())


class Facts(NamedTuple):
    """What is known of the messages that a batch's asks ask for.

    - `outcomes`: what the batch cancels of them, and what was cancelled before
    - `dropped`: the asks of messages that another one keeps its name from, and the id of that one (`ASK_SCHEMA`)
    - `superseded`: messages of the batch that a later record of it asks for by their name (`CANCELLED_SCHEMA`)
    - `names`: the messages that have names from now on (`NAMED_SCHEMA`)
    - `due_now`: what the batch takes of that which it would hand over itself, perhaps (`CANCELLED_SCHEMA`)
    - `recalled`: what release processes have recalled
    - `known_from`: from which offset of each input partition on nothing is forgotten
    - `replaced_before`: what a lost batch has replaced, and the id of each one's replacement
    - `due_at_once_ms`: when a message is due that the batch makes due at once, epoch ms
    """

    outcomes: Outcomes
    dropped: pa.Table
    superseded: pa.Table
    names: pa.Table
    due_now: pa.Table
    recalled: Ids
    known_from: Mapping[tuple[str, int], int]
    replaced_before: Mapping[MessageId, MessageId]
    due_at_once_ms: int


def decide(asks: pa.Table, facts: Facts, undecided: Undecided) -> Decision:
    """Decide `asks` (`ASK_SCHEMA`); those by a name that no message has ask for `NOTHING`.

    `undecided` takes the place of an answer if the release processes must decide.
    """
    is_for_something = pc.greater_equal(asks.column("offset"), 0)
    asks, for_nothing = asks.filter(is_for_something), asks.filter(pc.invert(is_for_something))
    outcomes = facts.outcomes
    # As many go on in a replay, whatever is recalled since.
    not_waiting = outcomes.open_ids()
    outcomes.set_cancelled(facts.recalled)
    replacements = Replacements.of(asks, facts.dropped, outcomes.taken, facts.replaced_before)
    outcomes.take(replacements.refused)
    delivered = replacements.delivered
    outcomes.set_delivered(delivered)
    outcomes.close(facts.known_from)
    answers = [
        answers_by(outcomes, asks, not_waiting, replacements.accepted, undecided),
        answers_for_nothing(for_nothing),
        answers_for_kept(facts.dropped),
    ]
    refused = ids_of(each for each in each_of(replacement_ids(asks)) if each not in replacements.accepted)
    left_out = united([refused, ids_in(own_ids(facts.dropped)), ids_in(facts.due_now), ids_in(facts.superseded)])
    moves = table_of(delivered)
    when = [pa.repeat(pa.scalar(value), moves.num_rows) for value in (facts.due_at_once_ms, True)]
    moves = pa.table([*moves.columns, *when], schema=MOVES_SCHEMA)
    replaced: dict[MessageId, Successor] = dict.fromkeys(each_of(delivered), facts.due_at_once_ms)
    replaced |= replacements.replaced
    return Decision(
        pa.concat_tables(answers), outcomes.taken, without(left_out, delivered), facts.names, replaced, moves,
        drops=facts.dropped.num_rows > 0,
    )  # fmt: skip


@dataclass(frozen=True)
class Replacements:
    """What becomes of the replacements of a batch, and of what asks want to be due at once.

    - `accepted`: the ids of replacements
    - `refused`: the others that the batch has not taken otherwise, as cancelled messages (`CANCELLED_SCHEMA`)
    - `replaced`: the accepted one, by the message that it has replaced; without those that have a name
    - `delivered`: the messages that are handed over at once: no replacement that is refused
    """

    accepted: frozenset[MessageId] = frozenset()
    refused: pa.Table = field(default_factory=CANCELLED_SCHEMA.empty_table)
    replaced: Mapping[MessageId, MessageId] = field(default_factory=lambda: NONE_REPLACED)
    delivered: Ids = field(default_factory=dict)

    @staticmethod
    def of(
        asks: pa.Table,
        dropped: pa.Table,
        taken: pa.Table,
        replaced_before: Mapping[MessageId, MessageId],
    ) -> Replacements:
        """Decide the replacements among `asks` (`ASK_SCHEMA`), and the asks for delivery at once.

        `dropped` are other asks: their messages replace nothing, and are not accepted. `taken` is what the batch takes
        from where it waits (`CANCELLED_SCHEMA`), and `replaced_before` what a lost batch has replaced.
        """
        found, dropped_ids = ids_in(taken), ids_in(own_ids(dropped))
        are_dropped = _as_cancelled(dropped, found)
        delivered = without(first_delivered(asks, found), dropped_ids)
        if asks.column("condition").null_count == asks.num_rows:
            return Replacements(refused=are_dropped, delivered=delivered)
        cancelled, every = each_of(without(found, delivered)), asks_of(asks)
        accepted = accepted_replacements(every, cancelled, replaced_before, each_of(dropped_ids))
        accepted_ids = ids_of(accepted)
        refused = _as_cancelled(asks.filter(pc.is_valid(asks.column("condition"))), united([found, accepted_ids]))
        return Replacements(
            frozenset(accepted),
            pa.concat_tables([refused, are_dropped]),
            replaced_by(every, cancelled, accepted),
            without(delivered, without(replacement_ids(asks), accepted_ids)),
        )


def _as_cancelled(asks: pa.Table, but: Ids) -> pa.Table:
    """Return the messages that `asks` came with (`CANCELLED_SCHEMA`), without those of `but`."""
    own, due = own_ids(asks), asks.column("deliver_at_ms")
    messages = pa.table([*own.columns, due, due], schema=CANCELLED_SCHEMA)
    return messages.filter(pa.array(~among(messages, but)))
