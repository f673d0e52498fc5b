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
| keeps its due time, and a new one has its name | as of its place above; the new one is moved to that due time |
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
from state.cancel import ALWAYS, WAITING, Ask, MessageId, Successor, asks_of, own_ids, replacement_ids
from state.message_ids import Ids, among, each_of, ids_in, ids_of, united, without
from state.names import NAMED_SCHEMA
from state.reasons import Reason
from state.repeats.occurrences import Predecessor
from streaming.job.requests.answers import answers_by
from streaming.job.requests.names import LookedUp
from streaming.job.requests.outcomes import Outcomes
from streaming.job.requests.search import NOTHING_WAITS, Waiting


@dataclass(frozen=True)
class Decision:
    """What a batch decides: its answers, the messages that it cancels, and what it does not hand over.

    `answers` has the columns of `ANSWER_SCHEMA`, `cancelled` those of `CANCELLED_SCHEMA`. `left_out` are messages that
    came with the batch, and are not handed over if they are due now: replacements that it refuses, and others that are
    cancelled. They are among the cancelled messages. `names` are the messages that got a name in the batch
    (`state.names.NAMED_SCHEMA`). `replaced` has the replacement of each cancelled message that one has cancelled.
    `drops` says whether another message keeps its name from any of them.
    `moves` are messages that get another due time (`state.buckets.moves.MOVES_SCHEMA`). Those that are due at once are
    among the cancelled messages, although the batch does not cancel them: `replaced` has for each when it is due. The
    others are `retimed`: messages of the batch that take over the due time of another one (`RETIMED_SCHEMA`).
    `places` says where those wait that are in the table. `predecessors` are the messages that repeat and waited, of
    those that came in their place and repeat too.
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
        """Return whether anybody can tell, by what is handed over below `cutoff_ms` (epoch ms), what is cancelled.

        By an answer, or by the message in whose favour something is cancelled. Then it must be stored before: a rebuild
        would not know it, and deliver the cancelled message as well. The message that keeps its name may be handed over
        long before: then nobody has the name after a rebuild, and a message that was dropped would come out. By the due
        time of its record, a message that is moved would come out again.
        """
        if self.drops or self.moves.num_rows:
            return True
        if not self.cancelled.num_rows:
            return False
        is_told = pc.any(pc.is_valid(self.answers.column("value"))).as_py()
        return bool(is_told or pc.any(pc.less(self.names.column("deliver_at_ms"), cutoff_ms)).as_py())


class Facts(NamedTuple):
    """What is known of the messages that a batch's asks ask for.

    - `outcomes`: what the batch cancels of them, and what was cancelled before
    - `named`: what the names have told
    - `due_now`: what the batch takes of that which it would seal or hand over itself, perhaps (`CANCELLED_SCHEMA`)
    - `recalled`: what release processes have recalled
    - `known_from`: from which offset of each input partition on nothing is forgotten
    - `replaced_before`: what a lost batch has replaced, and the id of each one's replacement
    - `numbers`: the messages that repeat, and the number of the occurrence that waited
    - `waits`: what waits in the table, and which of it repeats
    - `due_at_once_ms`: when a message is due that the batch makes due at once, epoch ms
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


def decide(asks: pa.Table, facts: Facts, undecided: Undecided) -> Decision:
    """Decide `asks` (`ASK_SCHEMA`); those by a name that no message has ask for `NOTHING`.

    `undecided` takes the place of an answer if the release processes must decide.
    """
    outcomes, dropped, repeating = facts.outcomes, facts.named.dropped, ids_of(facts.numbers)
    # As many go on in a replay, whatever is recalled since.
    not_waiting = outcomes.open_ids()
    outcomes.set(facts.recalled, Reason.WITHDRAWN)
    # What repeats comes in its time, whoever wants it at once.
    stays = np.asarray(asks.column("delivers")) & among(asks, repeating)
    own = asks.filter(pa.array(~stays)).filter(pc.field("offset") >= 0)
    # The first ask for a message decides. Among cancels alone it does not matter which one is the first.
    replacements = own.filter(pc.is_valid(own.column("condition")))
    every = asks_of(own) if replacements.num_rows or pc.any(own.column("delivers")).as_py() else []
    found, dropped_ids = ids_in(outcomes.taken), ids_in(own_ids(dropped))
    first = first_asks(every, each_of(found)) if every else {}
    are_dropped = each_of(dropped_ids)
    at_once = {asked for asked, ask in first.items() if ask.delivers} - are_dropped
    causes = {asked: ask for asked, ask in first.items() if asked not in at_once}
    accepted = accepted_replacements(every, causes, facts.replaced_before, are_dropped)
    accepted_ids = ids_of(accepted)
    refused = without(replacement_ids(own), accepted_ids)
    delivered = without(ids_of(at_once), refused)
    outcomes.take(_as_cancelled(pa.concat_tables([replacements, dropped]), united([found, accepted_ids])))
    outcomes.set(delivered, Reason.MADE_DUE)
    outcomes.close(facts.known_from, repeating)
    outcome = np.append(outcomes.of(asks), [Reason.NAME_KEPT] * dropped.num_rows)
    answers = answers_by(
        pa.concat_tables([asks, dropped]), outcome, not_waiting, accepted_ids, facts.numbers, undecided
    )
    left_out = united([refused, dropped_ids, ids_in(facts.due_now), ids_in(facts.named.superseded)])
    moves = pa.concat_tables([moves_at_once(delivered, facts.due_at_once_ms), moves_to(facts.named.retimed)])
    replaced: dict[MessageId, Successor] = dict.fromkeys(each_of(delivered), facts.due_at_once_ms)
    # What has a name is accepted in any case, whatever became of the message before.
    replaced |= {asked: ask.id for asked, ask in causes.items() if ask.id in accepted and ask.name is None}
    return Decision(
        answers, outcomes.taken, without(left_out, delivered), facts.named.names, replaced, moves,
        facts.named.retimed, facts.waits.among(delivered), dropped.num_rows > 0,
        _predecessors(own, facts.waits.repeating),
    )  # fmt: skip


def first_asks(asks: Iterable[Ask], found: Collection[MessageId]) -> dict[MessageId, Ask]:
    """Return the first one of `asks`, by the order of their ids, for each message that is `found`."""
    first: dict[MessageId, Ask] = {}
    for ask in sorted(asks, key=lambda ask: ask.id):
        if ask.asked in found:
            first.setdefault(ask.asked, ask)
    return first


def accepted_replacements(
    asks: Iterable[Ask],
    causes: Mapping[MessageId, Ask],
    replaced: Mapping[MessageId, MessageId],
    dropped: Collection[MessageId],
) -> set[MessageId]:
    """Return the ids of the replacements among all `asks` of a batch that the batch accepts.

    `causes` has the messages that the batch cancels, and the first ask for each. Of a message that a lost batch took
    out, `replaced` has the replacement that it accepted in its place. Messages that are `dropped` have no asks here,
    and are not accepted.

    A replacement on the condition `WAITING` is accepted if it has cancelled a message. If that is a replacement of the
    same batch, it must have been accepted itself: round a circle, nobody is.
    """
    conditions = {ask.id: ask.condition for ask in asks if ask.condition is not None}
    accepted = {own for own, condition in conditions.items() if condition == ALWAYS}
    # What the batch has taken out is there: another message may have the id, of a topic that was made anew.
    first = {**replaced, **{asked: ask.id for asked, ask in causes.items()}}
    left = {asked: own for asked, own in first.items() if conditions.get(own) == WAITING}
    accepted_before = (asked for asked in left if asked not in conditions and asked not in dropped)
    rest = [*accepted, *accepted_before]
    while rest:
        if (own := left.pop(rest.pop(), None)) is not None:
            accepted.add(own)
            rest.append(own)
    return accepted


def _as_cancelled(asks: pa.Table, but: Ids) -> pa.Table:
    """Return the messages that `asks` came with (`CANCELLED_SCHEMA`), without those of `but`."""
    own, due = own_ids(asks), asks.column("deliver_at_ms")
    messages = pa.table([*own.columns, due, due], schema=CANCELLED_SCHEMA)
    return messages.filter(pa.array(~among(messages, but)))


def _predecessors(asks: pa.Table, repeating: Mapping[MessageId, Predecessor]) -> dict[MessageId, Predecessor]:
    """Return in whose place each message comes that repeats and comes with one of `asks` (`ASK_SCHEMA`).

    It may be in the place of another one of the batch, which never came.
    """
    found: dict[MessageId, Predecessor] = {}
    if repeating:
        for ask in sorted(asks_of(asks.filter(asks.column("repeats").fill_null(False))), key=lambda each: each.id):
            before = found.get(ask.asked, repeating.get(ask.asked))
            if before is not None:
                found[ask.id] = before
    return found
