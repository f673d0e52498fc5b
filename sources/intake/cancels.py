"""Accepting asks for a cancel: records with the header `state.cancel.CANCEL_HEADER`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import BadCancel
from sources.intake.header_columns import Headers, Rejections, only
from sources.intake.schedule import header_text
from state.cancel import CANCEL_HEADER
from state.message_ids import parse_id


def has_header(records: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which of `records`, with the columns of `sources.intake.kafka_reader`, have the header of a cancel."""
    headers = records.column("headers")
    names = pc.struct_field(pc.list_flatten(headers), 0)
    has_it = np.zeros(records.num_rows, dtype=bool)
    named = np.flatnonzero(np.asarray(pc.equal(names, CANCEL_HEADER).fill_null(False)))
    if len(named):
        ends = np.cumsum(np.asarray(pc.list_value_length(headers).fill_null(0)))
        has_it[np.searchsorted(ends, named, side="right")] = True
    return has_it


def asked_keys(headers: Headers, count: int, rejections: Rejections) -> pa.Array:
    """Return the id that each of `count` records asks for, as binary; null and a rejection for one that names none."""
    all_rows, all_values = headers.named(CANCEL_HEADER)
    counts = np.bincount(all_rows, minlength=count)
    rejections.reject(np.flatnonzero(counts > 1), BadCancel(f"a message may have one {CANCEL_HEADER} header"))
    keys: list[bytes | None] = [None] * count
    rows, values = only((counts == 1)[all_rows], all_rows, all_values)
    for row, value in zip(rows.tolist(), values.to_pylist(), strict=True):
        try:
            keys[row] = "/".join(map(str, parse_id(header_text(value)))).encode()
        except ValueError as problem:
            rejections.reject(np.array([row]), BadCancel(f"{CANCEL_HEADER} names the message to cancel: {problem}"))
    return pa.array(keys, pa.binary())
