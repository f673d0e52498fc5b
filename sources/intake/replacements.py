"""Accepting replacements: records with the header `state.cancel.REPLACES_HEADER`."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.rejected import BadReplaces
from sources.intake.accepted import Accepted, request_rows
from sources.intake.cancels import has_header, ids_named
from sources.intake.header_columns import Headers, Rejections, flatten, one_array, parse_choice, parse_distinct
from state.cancel import CONDITION_HEADER, CONDITIONS, OPERATOR_HEADER, REPLACES_HEADER, ask_table
from state.checkpoint.batch_settings import BatchSettings
from state.kinds import is_message, repeats
from state.message import HEADERS
from state.message_ids import ids_from_texts


def check_replacements(headers: Headers, records: pa.Table, rejections: Rejections) -> None:
    """Reject those of `records` that cannot be followed in what they replace, or on which condition."""
    if not len(headers.named(REPLACES_HEADER)[0]):
        return
    keys = ids_named(headers, REPLACES_HEADER, BadReplaces, records.num_rows, rejections)
    _conditions(headers, records.num_rows, rejections)
    rows = np.flatnonzero(np.asarray(pc.is_valid(keys)))
    asked, own = ids_from_texts(keys.take(pa.array(rows)).cast(pa.string())), records.take(pa.array(rows))
    # The id of a message that was published is lower. Of itself nothing would be left.
    comes_later = np.asarray(pc.greater_equal(asked.column("offset"), own.column("offset")))
    for name in ("topic", "partition"):
        comes_later &= np.asarray(pc.equal(asked.column(name), own.column(name)))
    rejections.reject(
        rows[comes_later], BadReplaces(f"{REPLACES_HEADER} names the message itself, or one that comes after it")
    )


def with_replacements(accepted: Accepted, batch_settings: BatchSettings, clock_ms: int) -> Accepted:
    """Return what is `accepted`, and behind it a request for each message that replaces another.

    What is delivered has the headers no more that ask for this, and say who does: whoever publishes it again means no
    second replacement, and an operator's name is for the answer alone.
    """
    messages = accepted.messages
    # An ask for a cancel is none, whatever else its headers say.
    replacing = has_header(messages, REPLACES_HEADER) & is_message(messages)
    if not replacing.any():
        return accepted
    rows = np.flatnonzero(replacing)
    own = messages.take(pa.array(rows))
    headers, none = flatten(one_array(own.column("headers").cast(HEADERS))), Rejections()
    keys = ids_named(headers, REPLACES_HEADER, BadReplaces, own.num_rows, none)
    conditions = _conditions(headers, own.num_rows, none)
    requests = request_rows(own, keys, batch_settings, clock_ms)
    asks = ask_table(requests, conditions=conditions, dues_ms=own.column("deliver_at_ms"), repeating=repeats(own))
    cleaned = accepted.without_headers(rows, (REPLACES_HEADER, CONDITION_HEADER, OPERATOR_HEADER))
    return cleaned.with_requests(requests, asks)


def _conditions(headers: Headers, count: int, rejections: Rejections) -> pa.Array:
    """Return the condition of each record that replaces another: the default where it has none or a rejected one."""
    replacing, _ = headers.named(REPLACES_HEADER)
    # On other records, the header says nothing.
    own = np.isin(headers.rows, replacing)
    headers = Headers(headers.rows[own], *(each.filter(pa.array(own)) for each in (headers.keys, headers.values)))
    rows, values = headers.single(CONDITION_HEADER, BadReplaces, rejections)
    parse = partial(parse_choice, CONDITION_HEADER, CONDITIONS, BadReplaces)
    conditions = np.zeros(count, dtype=np.int64)
    conditions[rows] = parse_distinct(rows, values, parse, rejections)
    return pa.array(CONDITIONS).take(pa.array(conditions))
