"""The headers of a table of records, as columns, and the rows that are rejected while the headers are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import quoted
from conf.rejected import Rejected
from state.header_values import header_text
from state.message import HEADERS

Ints = npt.NDArray[np.int64]


@dataclass
class Rejections:
    """The errors so far, by row. A row keeps its first error."""

    errors: dict[int, Rejected] = field(default_factory=dict)

    def reject(self, rows: Ints, error: Rejected) -> None:
        for row in rows.tolist():
            self.errors.setdefault(row, error)


@dataclass(frozen=True)
class Headers:
    """All headers of a table, flat: `rows[i]` is the record that header `i` belongs to."""

    rows: Ints
    keys: pa.Array
    values: pa.Array

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that any of the headers have."""
        return frozenset(self.keys.unique().to_pylist())

    def named(self, name: str) -> tuple[Ints, pa.Array]:
        """Return the rows of the headers with this name, and their values."""
        if name not in self.names:
            return self.rows[:0], self.values[:0]
        mask = pc.equal(self.keys, name)
        return self.rows[np.asarray(mask.fill_null(False))], self.values.filter(mask)

    def single(self, name: str, error: type[Rejected], rejections: Rejections) -> tuple[Ints, pa.Array]:
        """Return the same for records with one such header. Records with several are rejected with `error`."""
        rows, values = self.named(name)
        # The rows ascend.
        several = rows[1:][rows[1:] == rows[:-1]]
        if not len(several):
            return rows, values
        rejections.reject(several, error(f"a message may have one {name} header"))
        return only(~np.isin(rows, several), rows, values)


def flatten(headers: pa.Array) -> Headers:
    flat = headers.flatten()
    # Not `list_parent_indices`: it also counts entries under a null list, which `flatten` leaves out.
    rows = np.repeat(np.arange(len(headers)), np.asarray(pc.list_value_length(headers).fill_null(0)))
    return Headers(rows, pc.struct_field(flat, 0), pc.struct_field(flat, 1))


def one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def only(mask: npt.NDArray[np.bool_], rows: Ints, values: pa.Array) -> tuple[Ints, pa.Array]:
    return (rows, values) if mask.all() else (rows[mask], values.filter(pa.array(mask)))


def column_of(rows: Ints, values: pa.Array, count: int) -> pa.Array:
    """Return a column of `count` rows that has each of `values` in its row, and null in all others."""
    places = np.full(count, -1, dtype=np.int64)
    places[rows] = np.arange(len(rows))
    return values.take(pa.array(places, mask=places < 0))


def without_headers(headers: pa.Array, own: Ints, names: Sequence[str]) -> pa.Array:
    """Return the lists of `headers`. In the rows `own`, headers with one of `names` are removed."""
    if not len(own):
        return headers
    lengths = np.asarray(pc.list_value_length(headers).fill_null(0)).astype(np.int64)
    rows, flat = np.repeat(np.arange(len(headers)), lengths), headers.flatten()
    leaves = np.isin(rows, own) & np.asarray(pc.is_in(pc.struct_field(flat, 0), pa.array(names, pa.string())))
    if not leaves.any():
        return headers
    lengths -= np.bincount(rows[leaves], minlength=len(headers))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    left = flat.filter(pa.array(~leaves))
    return pa.ListArray.from_arrays(pa.array(offsets), left, mask=headers.is_null()).cast(HEADERS)


def parse_choice(name: str, choices: Sequence[str], error: type[Rejected], value: bytes | None) -> int:
    """Return which of `choices` the value of a header `name` is. Raises `error`."""
    try:
        text = header_text(value)
        if text not in choices:
            raise ValueError(f"it is {quoted(text)}")
    except ValueError as problem:
        raise error(f"{name} is {' or '.join(choices)}: {problem}") from None
    return choices.index(text)


def parse_distinct(rows: Ints, values: pa.Array, parse: Callable[[bytes | None], int], rejections: Rejections) -> Ints:
    """Parse each distinct header value once. Rows with an invalid value get 0 and are rejected.

    The time depends only on the number of values, however many of them are invalid.
    """
    encoded = values.dictionary_encode(null_encoding="encode")
    indices = np.asarray(encoded.indices)
    results = np.zeros(len(encoded.dictionary), dtype=np.int64)
    errors: dict[int, Rejected] = {}
    for at, value in enumerate(encoded.dictionary.to_pylist()):
        try:
            results[at] = parse(value)
        except Rejected as error:
            errors[at] = error
    if errors:
        places = np.argsort(indices, kind="stable")
        bounds = np.searchsorted(indices[places], np.arange(len(results) + 1)).tolist()
        for at, rejected in errors.items():
            rejections.reject(rows[places[bounds[at] : bounds[at + 1]]], rejected)
    return np.asarray(results[indices], dtype=np.int64)
