"""Accepting requests by an id: records with the header `state.cancel.CANCEL_HEADER`, or `DELIVER_NOW_HEADER`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from conf.rejected import BadCancel, BadDeliverNow, Rejected
from sources.intake.header_columns import Headers, Rejections, column_of
from state.cancel import CANCEL_HEADER, DELIVER_NOW_HEADER, REPLACES_HEADER
from state.header_values import header_text
from state.message_ids import id_text, parse_id
from state.names import CANCEL_NAME_HEADER, NAME_HEADER

# The error of a record with a bad request, by the header of the request.
_ERRORS: dict[str, type[Rejected]] = {CANCEL_HEADER: BadCancel, DELIVER_NOW_HEADER: BadDeliverNow}


def has_header(records: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    """Return which of `records`, which have a column of headers, have one with this name."""
    headers = records.column("headers")
    names = pc.struct_field(pc.list_flatten(headers), 0)
    has_it = np.zeros(records.num_rows, dtype=bool)
    named = np.flatnonzero(np.asarray(pc.equal(names, name).fill_null(False)))
    if len(named):
        ends = np.cumsum(np.asarray(pc.list_value_length(headers).fill_null(0)))
        has_it[np.searchsorted(ends, named, side="right")] = True
    return has_it


def asked_keys(headers: Headers, name: str, count: int, rejections: Rejections) -> pa.Array:
    """Return the requested id of each of `count` records, as binary; null and a rejection for a record without one.

    `name` is the header of the request.
    """
    error = _ERRORS[name]
    # A replay has the same order: if there are several objections, the first counts.
    for other in (*_ERRORS, REPLACES_HEADER, NAME_HEADER, CANCEL_NAME_HEADER):
        if other == name:
            continue
        both, _ = headers.named(other)
        rejections.reject(both, error(f"a record with {name} is not a message and must not have {other}"))
    return ids_named(headers, name, error, count, rejections)


def ids_named(headers: Headers, name: str, error: type[Rejected], count: int, rejections: Rejections) -> pa.Array:
    """Return the message id in the header `name` of each of `count` records, as binary.

    Null without the header; null and a rejection with `error` for an unusable header.
    """
    rows, values = headers.single(name, error, rejections)
    parsed: list[bytes | None] = []
    for row, value in zip(rows.tolist(), values.to_pylist(), strict=True):
        try:
            parsed.append(id_text(parse_id(header_text(value))).encode())
        except ValueError as problem:
            parsed.append(None)
            rejections.reject(np.array([row]), error(f"{name} names a message: {problem}"))
    return column_of(rows, pa.array(parsed, pa.binary()), count)
