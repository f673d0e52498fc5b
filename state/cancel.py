"""Cancels, replacements and delivery at once: the headers that ask for them, and the answer, for the results topic.

A record with the header `CANCEL_HEADER`, or `DELIVER_NOW_HEADER`, is an *ask*. It is accepted like a message that goes
to the results topic at once, with the id that it asks for as its key. So it is in order, handed over and released like
any message, exactly once. Its kind is `REQUEST` (`state.kinds`) until its value, the *answer*, is filled in: when its
batch has decided (`streaming.job.requests.decision`), or a release process.

A record with the header `REPLACES_HEADER` is a *replacement*. It is accepted as two messages with the same id: itself,
without these headers, and an ask for the message that it replaces.

A record that has a *name* (`state.names`) is a replacement too, of whatever waits under the name. Which message that is
the batch finds out (`streaming.job.requests.names`), so until then its ask asks for `NOTHING`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import InvariantViolated
from state.kinds import ANSWER, KIND, REQUEST, Mask, is_message, kinds_of
from state.message_ids import ID, ID_SCHEMA, NO_IDS, Ids, among, id_text, id_texts, ids_from_texts, ids_in, places_in
from state.reasons import RESULTS, Reason

# On a record of an input topic: the id of the message to cancel, `topic/partition/offset`.
CANCEL_HEADER = "delayline-cancel"
# On a record of an input topic: the id of the message that shall be due at once.
DELIVER_NOW_HEADER = "delayline-deliver-now"
# The id of the message that the record replaces, and the condition: one of `CONDITIONS`, the first by default.
REPLACES_HEADER, CONDITION_HEADER = "delayline-replaces", "delayline-if"
WAITING, ALWAYS = CONDITIONS = ("waiting", "always")
# Who asks, on an ask or a replacement of `delayline web`. The answer has it, and never what is delivered.
OPERATOR_HEADER = "delayline-operator"

MessageId = tuple[str, int, int]
# The id of no message: what an ask by a name asks for until the batch has looked the name up, and if nothing waits.
NOTHING: MessageId = ("", -1, -1)
# What stands in the stored row of a message that a batch has taken from where it waited, and not just cancelled: the id
# of its replacement; or the due time at which it was handed over itself, epoch ms.
Successor = MessageId | int
# Messages that were cancelled for a replacement, and its id: none.
NONE_REPLACED: Mapping[MessageId, MessageId] = MappingProxyType({})


class Ask(NamedTuple):
    """An ask: its own id, and the id that it asks for.

    Of a replacement also its condition, one of `CONDITIONS` or `state.names.KEEP`, and when it is due, epoch ms. It has
    the id of its ask. Of an ask by a name also the name (`state.names.named`). Of a message that has a name also when
    it was published, epoch ms, and whether its publisher wants an answer. `delivers` says that the message shall be due
    at once.
    """

    id: MessageId
    asked: MessageId
    condition: str | None = None
    deliver_at_ms: int | None = None
    name: bytes | None = None
    published_ms: int | None = None
    wants_answer: bool | None = None
    delivers: bool = False


# What asks ask for. As rows of messages, asks have that as their key, the headers that the publisher sent along, and no
# value until their batch has decided: then it is the answer, or `Undecided`.
ASK_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("ask_topic", pa.string()),
        ("ask_partition", pa.int32()),
        ("ask_offset", pa.int64()),
        ("condition", pa.string()),
        ("deliver_at_ms", pa.int64()),
        ("name", pa.binary()),
        ("published_ms", pa.int64()),
        ("wants_answer", pa.bool_()),
        ("delivers", pa.bool_()),
    ]
)
# Answers, by the id of the ask: the value, or null if nobody waits for an answer; the key, or null if the ask has it
# already; and `REQUEST` in place of `ANSWER` if a release process must decide.
ANSWER_SCHEMA = pa.schema([*ID_SCHEMA, ("value", pa.large_binary()), ("key", pa.binary()), KIND])
_ASK_ID = tuple(f"ask_{name}" for name in ID)
_TERMS = ("condition", "deliver_at_ms", "name", "published_ms", "wants_answer", "delivers")


def without_cancelled(messages: pa.Table, cancelled: Ids) -> pa.Table:
    """Return `messages` but for those that have one of the ids `cancelled`."""
    return without_named(messages, among(messages, cancelled))


def without_named(messages: pa.Table, named: Mask) -> pa.Table:
    """Return `messages` but for those whose id is `named` as that of a cancelled message.

    An ask stays, since that of a cancelled replacement has the id of the replacement; and so does a dead letter.
    """
    if not named.any():
        return messages
    return messages.filter(pa.array(~named | ~is_message(messages)))


def ask_table(
    requests: pa.Table,
    names: pa.Array | None = None,
    conditions: pa.Array | None = None,
    dues_ms: pa.ChunkedArray | None = None,
    wants_answers: pa.Array | None = None,
    delivers: Mask | None = None,
) -> pa.Table:
    """Return what each of `requests`, which are messages, asks for, as a table of `ASK_SCHEMA`.

    Args:
        requests: their keys are the ids that they ask for, unless they ask by `names`.
        names: for each the name that it asks by (`state.names.named`).
        conditions: for each the condition on which a message comes with it (`Ask`); null for a cancel.
        dues_ms: for each when that message is due, epoch ms.
        wants_answers: for each whether the publisher of a message that has a name wants an answer.
        delivers: which of them ask that their message shall be due at once: none by default.
    """
    count = requests.num_rows
    if names is None:
        asked = asked_by(requests).columns[: len(ID)]
    else:
        asked = [pa.repeat(pa.scalar(part, field.type), count) for part, field in zip(NOTHING, ID_SCHEMA, strict=True)]
    own = [requests.column(name) for name in ID]
    published_ms = None if names is None or conditions is None else requests.column("timestamp_ms")
    every = (conditions, dues_ms, names, published_ms, wants_answers)
    terms = [pa.nulls(count) if each is None else each for each in every]
    delivering = pa.array(np.zeros(count, dtype=bool) if delivers is None else delivers)
    return pa.table([*asked, *own, *terms, delivering], names=ASK_SCHEMA.names).cast(ASK_SCHEMA)


def asked_by(asks: pa.Table) -> pa.Table:
    """Return for each of `asks`, which are messages, the id that it asks for (`ID`), and its own as of `ASK_SCHEMA`."""
    # Keys are ids that were parsed before.
    asked = ids_from_texts(asks.column("key").cast(pa.string()))
    return pa.table([*asked.columns, *(asks.column(name) for name in ID)], names=[*ID, *_ASK_ID])


def asks_of(table: pa.Table) -> list[Ask]:
    """Return the asks of a table that has the columns of `ASK_SCHEMA`."""
    asked, own = (zip(*(table.column(name).to_pylist() for name in names), strict=True) for names in (ID, _ASK_ID))
    terms = (table.column(name).to_pylist() for name in _TERMS)
    return list(map(Ask, own, asked, *terms))


def replacement_ids(asks: pa.Table) -> Ids:
    """Return the ids of the replacements among `asks`, a table that has the columns of `ASK_SCHEMA`."""
    return ids_in(own_ids(asks.filter(pc.is_valid(asks.column("condition")))))


def own_ids(asks: pa.Table) -> pa.Table:
    """Return the own ids of `asks`, a table that has the columns of `ASK_SCHEMA`, as one with the columns `ID`."""
    return asks.select(_ASK_ID).rename_columns(ID)


def delivering_ids(asks: pa.Table) -> Ids:
    """Return the ids that those of `asks`, a table that has the columns of `ASK_SCHEMA`, want to be due at once."""
    return ids_in(asks.filter(asks.column("delivers")))


def replacing(asked: str, condition: str) -> list[tuple[str, bytes]]:
    """Return the headers of a message that replaces the one with the id `asked`."""
    return [(REPLACES_HEADER, asked.encode()), (CONDITION_HEADER, condition.encode())]


def first_delivered(asks: pa.Table, among_ids: Ids | None = None) -> Ids:
    """Return the messages that the first one of several `asks` for each, by the order of ids, wants to be due at once.

    `asks` have the columns `ID`, those of their own ids as of `ASK_SCHEMA`, and `delivers`. Only messages `among_ids`,
    if these are given.
    """
    wanted = delivering_ids(asks)
    if not wanted:
        return NO_IDS
    own = asks.filter(pa.array(among(asks, wanted)))
    if among_ids is not None:
        own = own.filter(pa.array(among(own, among_ids)))
    in_order = own.select([*ID, *_ASK_ID, "delivers"]).sort_by([(name, "ascending") for name in _ASK_ID])
    # Not in threads: the first row of each is meant.
    firsts = in_order.group_by(list(ID), use_threads=False).aggregate([("delivers", "first")])
    return ids_in(firsts.filter(firsts.column("delivers_first")))


def accepted_replacements(
    asks: Iterable[Ask],
    cancelled: Collection[MessageId],
    replaced: Mapping[MessageId, MessageId] = NONE_REPLACED,
    dropped: Iterable[MessageId] = (),
) -> set[MessageId]:
    """Return the ids of the replacements among all `asks` of a batch that the batch accepts.

    `cancelled` are the messages that the batch has taken out. The ask for one with the lowest id counts as the cause.
    Of a message that a lost batch took out, `replaced` has the replacement that it accepted in its place. Messages that
    are `dropped` have no asks here, and are not accepted.

    A replacement on the condition `WAITING` is accepted if it has cancelled a message. If that is a replacement of the
    same batch, it must have been accepted itself.
    """
    in_order = sorted(asks, key=lambda ask: ask.id)
    # What the batch has taken out is there: another message may have the id, of a topic that was made anew.
    first = {**replaced, **_first_asks(in_order, cancelled)}
    replacements = {ask.id: ask for ask in in_order if ask.condition is not None}
    accepted = dict.fromkeys(dropped, False)
    for start in replacements:
        # What a replacement depends on is followed to where it is known; round a circle nobody is accepted.
        chain: list[MessageId] = []
        at, known = start, True
        while at in replacements and at not in accepted:
            chain.append(at)
            # In case that the chain comes back.
            accepted[at] = False
            ask = replacements[at]
            if ask.condition == ALWAYS or first.get(ask.asked) != at:
                known = ask.condition == ALWAYS
                accepted[chain.pop()] = known
                break
            at = ask.asked
        else:
            known = accepted.get(at, True)
        accepted |= dict.fromkeys(chain, known)
    return {each for each, was in accepted.items() if was}


def replaced_by(
    asks: Iterable[Ask], cancelled: Collection[MessageId], accepted: Collection[MessageId]
) -> dict[MessageId, MessageId]:
    """Return the messages among `cancelled` that a replacement has cancelled first, and the id of each one's.

    `accepted` are the replacements that the batch accepts. Without those that have a name: they are accepted in any
    case, whatever became of the message before.
    """
    every = list(asks)
    by_id = {ask.id for ask in every if ask.condition is not None and ask.name is None and ask.id in accepted}
    if not by_id:
        return {}
    first = _first_asks(sorted(every, key=lambda ask: ask.id), cancelled)
    return {asked: own for asked, own in first.items() if own in by_id}


def _first_asks(in_order: Iterable[Ask], cancelled: Collection[MessageId]) -> dict[MessageId, MessageId]:
    """Return the first ask for each message that is `cancelled`, by the message's id."""
    first: dict[MessageId, MessageId] = {}
    for ask in in_order:
        if ask.asked in cancelled:
            first.setdefault(ask.asked, ask.id)
    return first


class Output(NamedTuple):
    """Where a message went: the topic; the partition, and the first and last offset of its transaction, if known.

    The message has one of these offsets.
    """

    topic: str
    partition: int | None = None
    offsets: tuple[int, int] | None = None


def answer(ask: Ask, reason: Reason, accepted: bool | None = None, output: Output | None = None) -> bytes:
    """Return the value of an answer, a JSON object.

    `accepted` says what became of a replacement, and `output` where the message went that is asked for, if it is known.
    """
    fields = {"id": _text(ask.asked)} | _outcome(reason)
    if accepted is not None:
        fields |= {"replacement": _text(ask.id), "accepted": accepted}
    if output is not None:
        fields["output"] = {name: part for name, part in output._asdict().items() if part is not None}
    return json.dumps(fields, ensure_ascii=False).encode()


def _outcome(reason: Reason) -> dict[str, Any]:
    """Return what all answers say that have the same reason."""
    outcome = {"result": reason.result, "reason": reason.code}
    return outcome if reason.why is None else outcome | {"why": reason.why}


def count_results(answers: pa.Table) -> dict[str, int]:
    """Return how many of `answers`, a table with their values, have each of `RESULTS`."""
    values = answers.column("value")
    # In an id, which is text of JSON, each quote has a backslash before it.
    return {each: pc.sum(pc.match_substring(values, f'"result": "{each}"')).as_py() or 0 for each in RESULTS}


# In `Undecided`, the time of an ask for a message whose record is deleted, or older than `cancels.known_for`.
OLD_MS = -1


class Undecided(NamedTuple):
    """What the value of an ask says whose message is handed over: the release processes decide it.

    - `due_before_ms`: the message, if it waits there, is due before this instant, epoch ms
    - `asked_ms`: when it was not known to be cancelled, epoch ms; 0 if a recall may not be read yet that says so, and
      `OLD_MS` if that may be forgotten
    - `shards`, `left`: how many shards there are, and how many of them have still to look for it after this one
    - `replaces`: whether the ask is that of a message which is accepted in any case
    - `epoch`: that of the checkpoint whose batch has read it
    - `delivers`: whether the message shall be due at once, and is not cancelled
    """

    due_before_ms: int
    asked_ms: int
    shards: int
    left: int
    replaces: bool = False
    epoch: int = 1
    delivers: bool = False

    def to_bytes(self) -> bytes:
        """Return the value of the ask."""
        return json.dumps(self).encode()

    @staticmethod
    def from_bytes(value: bytes) -> Undecided:
        """Read the value of such an ask."""
        return Undecided(*json.loads(value))


def answers_to(asks: pa.Table, reason: Reason, replaces: bool = False) -> pa.Table:
    """Return the same answer to each of `asks`, which are for messages of input topics, as of `ANSWER_SCHEMA`.

    If the asks are those of messages that take the place of others (`replaces`), these are accepted.
    """
    rest = json.dumps(_outcome(reason), ensure_ascii=False)
    # The name of such a topic needs no escape.
    texts = pc.binary_join_element_wise('{"id": "', id_texts(asks), '", ' + rest.removeprefix("{"), "")
    if replaces:
        own = id_texts(own_ids(asks))
        texts = pc.binary_join_element_wise(
            pc.binary_slice(texts.cast(pa.binary()), 0, -1).cast(pa.string()),
            ', "replacement": "', own, '", "accepted": true}', "",
        )  # fmt: skip
    return _answer_table(asks, texts.cast(pa.large_binary()))


def answers_with_outputs(
    asks: pa.Table, reason: Reason, replaces: Iterable[bool], outputs: Iterable[Output]
) -> pa.Table:
    """Return what `answers_to` does, but with where the message of each ask went (`outputs`).

    `replaces` says of each ask whether it is that of a message which takes the place of another, and is accepted.
    """
    asked, own = (zip(*(asks.column(name).to_pylist() for name in names), strict=True) for names in (ID, _ASK_ID))
    return answers_of(
        {
            ask.id: answer(ask, reason, True if accepted else None, output)
            for ask, accepted, output in zip(map(Ask, own, asked), replaces, outputs, strict=True)
        }
    )


def answers_of(
    answers: Mapping[MessageId, bytes | None], about: Mapping[MessageId, MessageId] = NONE_REPLACED
) -> pa.Table:
    """Return single answers, by the id of the ask, as a table of `ANSWER_SCHEMA`.

    The keys of the asks stay, but for those that have the message which they are `about`.
    """
    keys = tuple(None if each not in about else "/".join(map(str, about[each])).encode() for each in answers)
    columns = [*_columns(list(answers), 3), tuple(answers.values()), keys, (ANSWER,) * len(answers)]
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, ANSWER_SCHEMA, strict=True)],
        schema=ANSWER_SCHEMA,
    )


def undecided_asks(asks: pa.Table, undecided: Undecided) -> pa.Table:
    """Return `undecided` in place of an answer to each of `asks`, as a table of `ANSWER_SCHEMA`."""
    values = pa.repeat(pa.scalar(undecided.to_bytes(), pa.large_binary()), asks.num_rows)
    return _answer_table(asks, values, REQUEST)


def no_answers(asks: pa.Table) -> pa.Table:
    """Return that nobody waits for an answer to any of `asks`, as a table of `ANSWER_SCHEMA`."""
    return _answer_table(asks, pa.nulls(asks.num_rows, pa.large_binary()))


def answered(messages: pa.Table, answers: pa.Table) -> pa.Table:
    """Return `messages` with the answer of each ask as its value, and without the asks that nobody wants answered.

    `answers` has the columns of `ANSWER_SCHEMA`. Raises InvariantViolated if one is missing.
    """
    mask = np.asarray(kinds_of(messages) == REQUEST)
    if not mask.any():
        return messages
    asks = messages.filter(pa.array(mask))
    places = places_in(answers, asks)
    if (places < 0).any():
        missing = id_texts(asks)[int(np.argmin(places))]
        raise InvariantViolated(f"the request {missing} is staged without an answer")
    own = answers.take(pa.array(places))
    keys = pc.coalesce(own.column("key"), asks.column("key"))
    for name, new in (("kind", own.column("kind")), ("value", own.column("value")), ("key", keys)):
        field = messages.schema.get_field_index(name)
        filled = pc.replace_with_mask(messages.column(name).combine_chunks(), pa.array(mask), new.combine_chunks())
        messages = messages.set_column(field, messages.schema.field(field), filled)
    if not own.column("value").null_count:
        return messages
    unwanted = np.zeros(len(mask), dtype=bool)
    unwanted[mask] = np.asarray(pc.is_null(own.column("value")))
    return messages.filter(pa.array(~unwanted))


def _answer_table(asks: pa.Table, values: pa.Array, kind: int = ANSWER) -> pa.Table:
    """Return `values` as the answers to `asks`, with the ids that these ask for as keys."""
    kinds = pa.repeat(pa.scalar(kind, KIND.type), asks.num_rows)
    columns = [*(asks.column(name) for name in _ASK_ID), values, id_texts(asks).cast(pa.binary()), kinds]
    return pa.table(columns, names=ANSWER_SCHEMA.names).cast(ANSWER_SCHEMA)


def _text(identity: MessageId) -> str | None:
    return None if identity == NOTHING else id_text(identity)


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> list[tuple[object, ...]]:
    return list(zip(*rows, strict=True)) if rows else [()] * width
