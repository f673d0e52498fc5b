"""Accepting replacements: records with the header `state.cancel.REPLACES_HEADER`."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.rejected import BadReplaces
from sources.intake.cancels import ids_named
from sources.intake.header_columns import Headers, Rejections, parse_choice, parse_distinct
from state.cancel import CONDITION_HEADER, CONDITIONS, REPLACES_HEADER
from state.message_ids import ids_from_texts


def replaced_ids(headers: Headers, records: pa.Table, rejections: Rejections) -> tuple[pa.Array, pa.Array]:
    """Return the id of the message that each of `records` replaces, as binary, and on which condition; null for others.

    Records with an invalid id or condition are rejected.
    """
    if not len(headers.named(REPLACES_HEADER)[0]):
        return pa.nulls(records.num_rows, pa.binary()), pa.nulls(records.num_rows, pa.string())
    keys = ids_named(headers, REPLACES_HEADER, BadReplaces, records.num_rows, rejections)
    conditions = _conditions(headers, records.num_rows, rejections)
    rows = np.flatnonzero(np.asarray(pc.is_valid(keys)))
    asked, own = ids_from_texts(keys.take(pa.array(rows)).cast(pa.string())), records.take(pa.array(rows))
    # The id of a published message is lower. A message that replaced itself would be lost.
    comes_later = np.asarray(pc.greater_equal(asked.column("offset"), own.column("offset")))
    for name in ("topic", "partition"):
        comes_later &= np.asarray(pc.equal(asked.column(name), own.column(name)))
    rejections.reject(
        rows[comes_later], BadReplaces(f"{REPLACES_HEADER} names the message itself, or one that comes after it")
    )
    return keys, pc.if_else(keys.is_valid(), conditions, None)


def _conditions(headers: Headers, count: int, rejections: Rejections) -> pa.Array:
    """Return the condition of each record that replaces another: the default if it is missing or rejected."""
    replacing, _ = headers.named(REPLACES_HEADER)
    # On other records, the header has no meaning.
    own = np.isin(headers.rows, replacing)
    headers = Headers(headers.rows[own], *(each.filter(pa.array(own)) for each in (headers.keys, headers.values)))
    rows, values = headers.single(CONDITION_HEADER, BadReplaces, rejections)
    parse = partial(parse_choice, CONDITION_HEADER, CONDITIONS, BadReplaces)
    conditions = np.zeros(count, dtype=np.int64)
    conditions[rows] = parse_distinct(rows, values, parse, rejections)
    return pa.array(CONDITIONS).take(pa.array(conditions))
