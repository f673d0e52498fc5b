"""Accepting names: which message has which name, and requests to cancel by name (`state.names`)."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.rejected import BadName, Rejected
from sources.intake.header_columns import Headers, Rejections, column_of, parse_choice, parse_distinct
from sources.intake.presets import name_messages
from state.cancel import REPLACES_HEADER
from state.checkpoint.batch_settings import BatchSettings
from state.kinds import Mask
from state.names import ANSWER_HEADER, CANCEL_NAME_HEADER, FROM_KEY, MOST_NAME_BYTES, NAME_HEADER, OFF, named


def gives_names(batch_settings: BatchSettings) -> bool:
    """Return whether messages of any input topic may have names."""
    policies = (batch_settings.policy, *batch_settings.policies.values())
    if any(policy.names != OFF for policy in policies):
        return True
    return any(map(name_messages, batch_settings.presets.values()))


def names_given(headers: Headers, keys: pa.Array, source: str, by_key: Mask, rejections: Rejections) -> pa.Array:
    """Return the name of each record, as binary; null without a name or with a wrong name, which is rejected.

    `source` is the value of the policy `names`. The records `by_key`, which a preset reads, have their keys as names
    whatever the policy says. A record without a name that wants an answer is rejected, too.
    """
    if source != FROM_KEY and not by_key.any() and not {NAME_HEADER, ANSWER_HEADER} & headers.names:
        return pa.nulls(len(keys), pa.binary())
    takes_keys = np.full(len(keys), source == FROM_KEY) | by_key
    # Some clients write an empty key instead of null.
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
    """Return the name in each request to cancel, as binary; null and a rejection with `error` without a name.

    `has_names` says whether messages of the topic have names at all. The requests `by_key`, which a preset reads, have
    the name as their key.
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


def request_keys(topics: pa.ChunkedArray, asked: pa.Array, names: pa.Array) -> pa.Array:
    """Return the keys of requests on input `topics`: the ids `asked`, or else the `names`. Each is binary.

    For a name that is a long key, the key is its hash: a request has all headers of its record, and may not be much
    larger than the record.
    """
    keys = pc.coalesce(asked, names)
    is_long = np.asarray(pc.greater(pc.binary_length(names), MOST_NAME_BYTES).fill_null(False))
    if not is_long.any():
        return keys
    rows = pa.array(np.flatnonzero(is_long))
    long = zip(topics.take(rows).to_pylist(), names.take(rows).to_pylist(), strict=True)
    short = pa.array([named(topic, name).hex().encode() for topic, name in long], keys.type)
    return pc.replace_with_mask(keys, pa.array(is_long), short)


def _check_answers(headers: Headers, names: pa.Array, rejections: Rejections) -> None:
    """Reject the records that want an answer and have no name, or that have another value than "true"."""
    rows, values = headers.single(ANSWER_HEADER, BadName, rejections)
    has_none = np.asarray(pc.is_null(names))[rows]
    unnamed = BadName(f"{ANSWER_HEADER} has no meaning on a message without a name: nothing is decided about it")
    rejections.reject(rows[has_none], unnamed)
    parse_distinct(rows, values, partial(parse_choice, ANSWER_HEADER, ("true",), BadName), rejections)


def _in_header(headers: Headers, name: str, error: type[Rejected], count: int, rejections: Rejections) -> pa.Array:
    rows, values = headers.single(name, error, rejections)
    lengths = np.asarray(pc.binary_length(values).fill_null(0))
    is_wrong = (lengths == 0) | (lengths > MOST_NAME_BYTES)
    rejections.reject(rows[is_wrong], error(f"{name} has 1 to {MOST_NAME_BYTES} bytes"))
    return column_of(rows[~is_wrong], values.filter(pa.array(~is_wrong)).cast(pa.binary()), count)
