"""Accepting names: which message has which name, and asks for a cancel by one (`state.names`)."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from conf.rejected import BadName, Rejected
from sources.intake.accepted import Accepted, request_rows
from sources.intake.cancels import has_header
from sources.intake.header_columns import Headers, Rejections, column_of, one_array, parse_choice, parse_distinct
from sources.intake.presets import name_messages
from state.cancel import ALWAYS, DELIVER_NOW_HEADER, REPLACES_HEADER, ask_table
from state.checkpoint.batch_settings import BatchSettings
from state.kinds import is_message, repeats
from state.names import (
    ANSWER_HEADER,
    CANCEL_NAME_HEADER,
    FROM_KEY,
    MOST_NAME_BYTES,
    NAME_HEADER,
    OFF,
    REPLACE,
    named,
)

Mask = npt.NDArray[np.bool_]


def gives_names(batch_settings: BatchSettings) -> bool:
    """Return whether messages of any input topic may have names."""
    policies = (batch_settings.policy, *batch_settings.policies.values())
    if any(policy.names != OFF for policy in policies):
        return True
    return any(map(name_messages, batch_settings.presets.values()))


def names_given(headers: Headers, keys: pa.Array, source: str, by_key: Mask, rejections: Rejections) -> pa.Array:
    """Return the name of each record, as binary: null for one without a name, or with a wrong one, which is rejected.

    `source` is what the policy `names` says. The records `by_key`, which a preset reads, have their keys as names
    whatever it says. A record without a name that wants an answer is rejected, too.
    """
    if source != FROM_KEY and not by_key.any() and not {NAME_HEADER, ANSWER_HEADER} & headers.names:
        return pa.nulls(len(keys), pa.binary())
    takes_keys = np.full(len(keys), source == FROM_KEY) | by_key
    # An empty key is what some clients write in place of none.
    has_key = np.asarray(pc.greater(pc.binary_length(keys), 0).fill_null(False))
    names = _in_header(headers, NAME_HEADER, BadName, len(keys), rejections)
    if source == OFF:
        rows, _ = headers.named(NAME_HEADER)
        off = BadName(f"{NAME_HEADER} has no meaning on this topic: the policy names is off")
        rejections.reject(rows[~by_key[rows]], off)
    names = pc.if_else(pa.array(takes_keys & has_key), pc.coalesce(names, keys), names)
    rows, _ = headers.named(REPLACES_HEADER)
    both = rows[np.asarray(pc.is_valid(names))[rows]]
    rejections.reject(both, BadName(f"a message that has a name replaces what has it: it has no {REPLACES_HEADER}"))
    _check_answers(headers, names, rejections)
    return names


def names_to_cancel(
    headers: Headers, keys: pa.Array, has_names: bool, by_key: Mask, error: type[Rejected], rejections: Rejections
) -> pa.Array:
    """Return the name that each ask for a cancel has, as binary; null and a rejection with `error` for one without.

    `has_names` says whether messages of the topic have names at all. The asks `by_key`, which a preset reads, have the
    name as their key.
    """
    names = _in_header(headers, CANCEL_NAME_HEADER, error, len(keys), rejections)
    if not has_names:
        off = error(f"{CANCEL_NAME_HEADER} has no meaning on this topic: the policy names is off")
        rejections.reject(np.arange(len(keys)), off)
    for name in (REPLACES_HEADER, NAME_HEADER):
        both, _ = headers.named(name)
        rejections.reject(both, error(f"a record with {CANCEL_NAME_HEADER} is not a message and must not have {name}"))
    names = pc.if_else(pa.array(by_key), pc.coalesce(names, keys), names)
    unnamed = np.flatnonzero(np.asarray(pc.is_null(names)))
    rejections.reject(unnamed, error("a record that cancels a message by its key has a key"))
    return names


def asks_in(requests: pa.Table, names: pa.Array) -> pa.Table:
    """Return what `requests` ask for (`ASK_SCHEMA`). Those that ask by a name are cancels, and have one of `names`."""
    by_name = pc.is_valid(names)
    by_id, own = requests.filter(pc.invert(by_name)), requests.filter(by_name)
    delivers = has_header(by_id, DELIVER_NOW_HEADER)
    return pa.concat_tables(
        [ask_table(by_id, delivers=delivers), ask_table(own, _hashes(own.column("topic"), names.filter(by_name)))]
    )


def with_names(accepted: Accepted, names: pa.Array, batch_settings: BatchSettings, clock_ms: int) -> Accepted:
    """Return what is `accepted`, and behind it a request for each message that has one of `names`.

    It is for the message that has the name already. What is delivered does not have the header `ANSWER_HEADER`: a
    consumer that publishes it again without the name would ask for what nobody can answer.
    """
    messages = accepted.messages.slice(0, len(names))
    rows = np.flatnonzero(np.asarray(pc.is_valid(names)) & is_message(messages))
    if not len(rows):
        return accepted
    own, given = messages.take(pa.array(rows)), names.take(pa.array(rows))
    topics, wants_answers = own.column("topic"), has_header(own, ANSWER_HEADER)
    requests = request_rows(own, ask_keys(topics, given), batch_settings, clock_ms)
    asks = ask_table(
        requests,
        _hashes(topics, given),
        _conditions(topics, batch_settings),
        own.column("deliver_at_ms"),
        pa.array(wants_answers),
        repeating=repeats(own),
    )
    if wants_answers.any():
        accepted = accepted.without_headers(rows[wants_answers], (ANSWER_HEADER,))
    return accepted.with_requests(requests, asks)


def ask_keys(topics: pa.ChunkedArray, names: pa.Array) -> pa.Array:
    """Return the keys of asks by `names` on input `topics`: the name, or its hash if it is a long key.

    An ask has all headers of its record, and may not be much larger than that.
    """
    is_long = np.asarray(pc.greater(pc.binary_length(names), MOST_NAME_BYTES).fill_null(False))
    if not is_long.any():
        return names
    rows = pa.array(np.flatnonzero(is_long))
    short = [name.hex().encode() for name in _hashes(topics.take(rows), names.take(rows)).to_pylist()]
    return pc.replace_with_mask(names, pa.array(is_long), pa.array(short, names.type))


def _conditions(topics: pa.ChunkedArray, batch_settings: BatchSettings) -> pa.Array:
    """Return on which condition each message on the input `topics` takes its name."""
    encoded = one_array(topics).dictionary_encode()
    modes = map(batch_settings.name_mode, encoded.dictionary.to_pylist())
    of_topics = [ALWAYS if mode == REPLACE else mode for mode in modes]
    return pa.array(of_topics, pa.string()).take(encoded.indices)


def _check_answers(headers: Headers, names: pa.Array, rejections: Rejections) -> None:
    """Reject the records that want an answer and have no name, or say so in another way than by "true"."""
    rows, values = headers.single(ANSWER_HEADER, BadName, rejections)
    has_none = np.asarray(pc.is_null(names))[rows]
    unnamed = BadName(f"{ANSWER_HEADER} has no meaning on a message without a name: nothing is decided about it")
    rejections.reject(rows[has_none], unnamed)
    parse_distinct(rows, values, partial(parse_choice, ANSWER_HEADER, ("true",), BadName), rejections)


def _hashes(topics: pa.ChunkedArray, names: pa.Array) -> pa.Array:
    """Return what stands for each of `names` on its input topic."""
    return pa.array(map(named, topics.to_pylist(), names.to_pylist()), pa.binary())


def _in_header(headers: Headers, name: str, error: type[Rejected], count: int, rejections: Rejections) -> pa.Array:
    rows, values = headers.single(name, error, rejections)
    lengths = np.asarray(pc.binary_length(values).fill_null(0))
    is_wrong = (lengths == 0) | (lengths > MOST_NAME_BYTES)
    rejections.reject(rows[is_wrong], error(f"{name} has 1 to {MOST_NAME_BYTES} bytes"))
    return column_of(rows[~is_wrong], values.filter(pa.array(~is_wrong)).cast(pa.binary()), count)
