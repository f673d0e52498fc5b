"""Answers to requests: their values for the results topic, and their placeholders until a release process decides.

docs/publish/cancelling.md documents the fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import InvariantViolated
from state.cancel import REQUEST_ID, own_ids
from state.kinds import ANSWER, KIND, REQUEST, kinds_of
from state.message_ids import ID_SCHEMA, id_texts, places_in
from state.reasons import RESULTS, Reason

# Answers, by the id of the request. The value is null if nobody waits for an answer. The key is null if the request has
# it already. The kind is `REQUEST` instead of `ANSWER` if a release process must decide.
ANSWER_SCHEMA = pa.schema([*ID_SCHEMA, ("value", pa.large_binary()), ("key", pa.binary()), KIND])


class Output(NamedTuple):
    """Where a message went: the topic, and if known the partition, and the first and last offset of its transaction.

    The message has one of these offsets.
    """

    topic: str
    partition: int | None = None
    offsets: tuple[int, int] | None = None

    def field(self) -> dict[str, dict[str, Any]]:
        """Return the field of an answer with the known parts."""
        return {"output": {name: part for name, part in self._asdict().items() if part is not None}}


def answers_to(
    requests: pa.Table,
    reasons: Iterable[Reason],
    accepted: pa.Array | None = None,
    more: Iterable[Mapping[str, Any]] | None = None,
) -> pa.Table:
    """Return the answers to `requests`, JSON objects, as a table of `ANSWER_SCHEMA`.

    Args:
        requests: the columns `ID` and `REQUEST_ID`. Those for `NOTHING` keep their keys.
        reasons: the reason of each answer.
        accepted: whether the message of each replacement is accepted; null for other requests.
        more: other fields of each answer.
    """
    parts = [_quoted_ids(requests), pa.array([_TEXTS[reason] for reason in reasons], pa.string())]
    if accepted is not None and accepted.null_count < len(accepted):
        # The name of an input topic needs no escape.
        own, flag = id_texts(own_ids(requests)), pc.if_else(accepted, "true", "false")
        parts.append(pc.binary_join_element_wise(', "replacement": "', own, '", "accepted": ', flag, "").fill_null(""))
    if more is not None:
        texts = ["".join(f', "{name}": {_json(value)}' for name, value in each.items()) for each in more]
        parts.append(pa.array(texts, pa.string()))
    values = pc.binary_join_element_wise('{"id": ', *parts, "}", "")
    return _answer_table(requests, values.cast(pa.large_binary()))


def _json(fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=False)


# The text behind the id, which all answers with the same reason share.
_TEXTS = {
    each: f', "result": "{each.result}", "reason": "{each.code}"' + (f', "why": {_json(each.why)}' if each.why else "")
    for each in Reason
}


def _quoted_ids(requests: pa.Table) -> pa.ChunkedArray:
    """Return the id in each of `requests`, as JSON."""
    topics = requests.column("topic").combine_chunks().dictionary_encode()
    # A stranger may ask for any text.
    quoted = pa.array([_json(each).removesuffix('"') for each in topics.dictionary.to_pylist()], pa.string())
    texts = (requests.column(name).cast(pa.string()) for name in ("partition", "offset"))
    ids = pc.binary_join_element_wise(quoted.take(topics.indices), *texts, "/")
    ids = pc.binary_join_element_wise(ids, '"', "")
    return pc.if_else(pc.less(requests.column("offset"), 0), "null", ids)


def count_results(answers: pa.Table) -> dict[str, int]:
    """Return how many of `answers`, a table with their values, have each of `RESULTS`."""
    values = answers.column("value")
    # In an id, which is text of JSON, each quote has a backslash before it.
    return {each: pc.sum(pc.match_substring(values, f'"result": "{each}"')).as_py() or 0 for each in RESULTS}


# In `Undecided`, the time of a request for a message with a record that is deleted, or older than `cancels.known_for`.
OLD_MS = -1


class Undecided(NamedTuple):
    """The value of a request for a staged message, which the release processes decide.

    - `due_before_ms`: the message, if it waits there, is due before this instant, epoch ms
    - `asked_ms`: when it was not known to be cancelled, epoch ms; 0 if a recall may not be read yet that says so, and
      `OLD_MS` if that may be forgotten
    - `shards`, `left`: how many shards there are, and how many of them have still to look for it after this one
    - `replaces`: whether the request comes with a message that is accepted in any case
    - `epoch`: the epoch of the checkpoint that has read the request
    - `delivers`: whether the message shall be due at once, instead of being cancelled
    """

    due_before_ms: int
    asked_ms: int
    shards: int
    left: int
    replaces: bool = False
    epoch: int = 1
    delivers: bool = False

    def to_bytes(self) -> bytes:
        """Return the value of the request."""
        return json.dumps(self).encode()

    @staticmethod
    def from_bytes(value: bytes) -> Undecided:
        """Read the value of such a request."""
        return Undecided(*json.loads(value))


def undecided_requests(requests: pa.Table, undecided: Sequence[Undecided]) -> pa.Table:
    """Return `undecided` in place of the answers to `requests`, one for each, as a table of `ANSWER_SCHEMA`."""
    texts = {each: each.to_bytes() for each in set(undecided)}
    return _answer_table(requests, pa.array([texts[each] for each in undecided], pa.large_binary()), REQUEST)


def no_answers(requests: pa.Table) -> pa.Table:
    """Return that nobody waits for an answer to any of `requests`, as a table of `ANSWER_SCHEMA`."""
    return _answer_table(requests, pa.nulls(requests.num_rows, pa.large_binary()))


def answered(messages: pa.Table, answers: pa.Table) -> pa.Table:
    """Return `messages` with the answer to each request as its value, and without requests that need no answer.

    `answers` has the columns of `ANSWER_SCHEMA`. Raises InvariantViolated if one is missing.
    """
    mask = np.asarray(kinds_of(messages) == REQUEST)
    if not mask.any():
        return messages
    requests = messages.filter(pa.array(mask))
    places = places_in(answers, requests)
    if (places < 0).any():
        missing = id_texts(requests)[int(np.argmin(places))]
        raise InvariantViolated(f"the request {missing} is staged without an answer")
    own = answers.take(pa.array(places))
    keys = pc.coalesce(own.column("key"), requests.column("key"))
    for name, new in (("kind", own.column("kind")), ("value", own.column("value")), ("key", keys)):
        field = messages.schema.get_field_index(name)
        filled = pc.replace_with_mask(messages.column(name).combine_chunks(), pa.array(mask), new.combine_chunks())
        messages = messages.set_column(field, messages.schema.field(field), filled)
    if not own.column("value").null_count:
        return messages
    unwanted = np.zeros(len(mask), dtype=bool)
    unwanted[mask] = np.asarray(pc.is_null(own.column("value")))
    return messages.filter(pa.array(~unwanted))


def _answer_table(requests: pa.Table, values: pa.Array, kind: int = ANSWER) -> pa.Table:
    """Return `values` as the answers to `requests`. An answer's key is the id in its request, or null without one."""
    keys = pc.if_else(pc.less(requests.column("offset"), 0), pa.scalar(None, pa.string()), id_texts(requests))
    kinds = pa.repeat(pa.scalar(kind, KIND.type), requests.num_rows)
    columns = [*(requests.column(name) for name in REQUEST_ID), values, keys.cast(pa.binary()), kinds]
    return pa.table(columns, names=ANSWER_SCHEMA.names).cast(ANSWER_SCHEMA)
