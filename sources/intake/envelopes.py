"""Envelopes: schedulers that have a message's own key, partition and origin in headers.

The publishers of such a scheduler give each schedule a key of its own, which is the message's name. The newest message
replaces the one before, and a record of another kind cancels it. A delivered message has the key and the partition that
headers name, and headers that say where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.rejected import BadDeliverTo, BadSchedule
from conf.sections import HeaderSettings
from sources.intake.header_case import in_any_case
from sources.intake.header_columns import (
    Headers,
    Ints,
    Rejections,
    flatten,
    one_array,
    only,
    parse_distinct,
    without_headers,
)
from sources.intake.partitioner import partitions_for
from sources.intake.preset_headers import Origin, Preset
from state.checkpoint.batch_settings import BatchSettings
from state.header_values import header_text, whole_number
from state.kinds import Mask
from state.message import HEADERS

# The bytes of the added headers without the record's key: names, the topic, and numbers.
_ADDED_BYTES = 512


def cancels_by_key(records: pa.Table, presets: Sequence[Preset], batch_settings: BatchSettings) -> Mask:
    """Return which of `records`, of one topic that has `presets`, cancel the message that has their key as its name.

    A record with a null value is still a message if Delayline's own headers, or headers of another preset, say when or
    where it shall be delivered. Then a publisher of that scheduler has written it. So is any record with one of
    Delayline's own delay headers. If the name of such a header has the wrong case, the message is refused.
    """
    cancels = np.zeros(records.num_rows, dtype=bool)
    headers: Headers | None = None
    for preset in presets:
        if preset.cancels_by_null_value:
            # The reader leaves out a large value, but never its length.
            is_null = np.array(pc.is_null(records.column("value_bytes")))
            headers = headers or flatten(one_array(records.column("headers")))
            # Not the preset's own: the scheduler's tombstones have all headers of their schedules.
            names = _delivery_headers(batch_settings.headers, [each for each in presets if each != preset])
            is_null[headers.rows[in_any_case(headers.keys, names)]] = False
            cancels |= is_null
        if preset.cancel_header:
            headers = headers or flatten(one_array(records.column("headers")))
            cancels |= _cancel_by_header(preset, headers, records.num_rows)
    if cancels.any():
        headers = headers or flatten(one_array(records.column("headers")))
        cancels[headers.rows[in_any_case(headers.keys, batch_settings.headers.delays)]] = False
    return cancels


def check_cancels(presets: Sequence[Preset], headers: Headers, by_key: Mask, rejections: Rejections) -> None:
    """Reject the cancels `by_key` that are written in an unknown version of a preset's headers."""
    for preset in presets:
        check_version(preset, headers, by_key & _cancel_by_header(preset, headers, len(by_key)), rejections)


def check_version(preset: Preset, headers: Headers, own: Mask, rejections: Rejections) -> None:
    """Reject the records `own`, which `preset` reads, that have a version which is not understood."""
    if preset.version is None:
        return
    name, prefix = preset.version
    rows, values = headers.named(name)
    other = ~np.asarray(pc.equal(pc.binary_slice(values, 0, len(prefix)), prefix).fill_null(False))
    rejections.reject(
        rows[other & own[rows]], BadSchedule(f"{name} begins with {prefix.decode()} in all that is understood")
    )


def _cancel_by_header(preset: Preset, headers: Headers, count: int) -> Mask:
    """Return which of `count` records have the header by which `preset` cancels."""
    cancels = np.zeros(count, dtype=bool)
    if preset.cancel_header:
        name, wanted = preset.cancel_header
        rows, values = headers.named(name)
        cancels[rows[np.asarray(pc.is_in(values, pa.array(wanted, pa.binary())))]] = True
    return cancels


def _delivery_headers(own: HeaderSettings, presets: Iterable[Preset]) -> list[str]:
    """Return the names of the headers that say when or where: Delayline's `own`, and the headers of `presets`."""
    names = [*own.delays, own.deliver_to]
    for preset in presets:
        names += [*(header.name for header in preset.schedule), *preset.refused]
        names += [preset.target] if preset.target else []
    return names


class Envelope:
    """The keys, partitions and headers of delivered messages by the presets of a topic, for a table."""

    def __init__(self, presets: Sequence[Preset], headers: Headers, count: int) -> None:
        """Look for the records of each preset that has envelopes, among `count` with these `headers`."""
        self._headers = headers
        self._count = count
        self._rows: list[tuple[Preset, Ints]] = []
        self._explicit: tuple[Ints, Ints] | None = None
        taken = np.zeros(count, dtype=bool)
        for preset in presets:
            if preset.named:
                rows = [headers.named(header.name)[0] for header in preset.schedule]
                own = np.unique(np.concatenate(rows))
                own = own[~taken[own]]
                taken[own] = True
                self._rows.append((preset, own))
        # The records that have their key as their name.
        self.named: Mask = taken

    def check_partitions(self, counts: Ints, rejections: Rejections) -> None:
        """Reject the records that name a partition which their output topic lacks. `counts` has its partition count."""
        for preset, own in self._rows:
            if not preset.partition or not len(own):
                continue
            rows, values = self._first(preset.partition, own)
            if len(rows):
                numbers = parse_distinct(rows, values, _partition_in(preset.partition), rejections)
                wrong = numbers >= counts[rows]
                rejections.reject(
                    rows[wrong], BadDeliverTo(f"{preset.partition} names no partition of the output topic")
                )
                self._explicit = rows, np.where(wrong, 0, numbers)

    def growth(self, records: pa.Table) -> Ints | int:
        """Return by how many bytes each message is larger than its record at most."""
        if not self.named.any():
            return 0
        growth = np.zeros(self._count, dtype=np.int64)
        key_bytes = np.asarray(records.column("key_bytes").fill_null(0)).astype(np.int64)
        for preset, own in self._rows:
            growth[own] += key_bytes[own] + _ADDED_BYTES
            rows, values = self._first(preset.key, own)
            growth[rows] += np.asarray(pc.binary_length(values)).astype(np.int64)
        return growth

    def rows_left(self, is_rejected: pa.Array) -> bool:
        """Return whether any record has an envelope, and is not rejected."""
        return bool((self.named & ~np.asarray(is_rejected)).any())

    def opened(
        self, records: pa.Table, keys: pa.Array, headers: pa.Array, is_rejected: pa.Array
    ) -> tuple[pa.Array, pa.Array]:
        """Return the keys and headers of delivered messages, from the `keys` and `headers` of the `records`."""
        left = ~np.asarray(is_rejected)
        for preset, of_preset in self._rows:
            own = of_preset[left[of_preset]]
            if len(own):
                if preset.replaces_origin:
                    headers = without_headers(headers, own, [name for name, _ in preset.origin])
                headers = _with_added(headers, own, preset.origin, records)
                keys = _replaced(keys, own, *self._first(preset.key, own))
        return keys, headers

    def partitions(self, chosen: Ints, counts: Ints, is_rejected: pa.Array) -> Ints:
        """Return the partitions of delivered messages: `chosen` by key, unless headers name one."""
        left = ~np.asarray(is_rejected)
        for preset, of_preset in self._rows:
            if preset.partition_key:
                rows, values = self._first(preset.partition_key, of_preset[left[of_preset]])
                if len(rows):
                    chosen[rows] = partitions_for(values.cast(pa.binary()), np.zeros(len(rows), np.int64), counts[rows])
        if self._explicit is not None:
            rows, numbers = self._explicit
            chosen[rows[left[rows]]] = numbers[left[rows]]
        return chosen

    def _first(self, name: str, own: Ints) -> tuple[Ints, pa.Array]:
        """Return the rows among `own` that have a value of the header `name`, and the first value that is not null."""
        rows, values = only(np.isin(self._headers.named(name)[0], own), *self._headers.named(name))
        rows, values = only(np.asarray(values.is_valid()), rows, values)
        first, at = np.unique(rows, return_index=True)
        return first, values.take(pa.array(at))


def _partition_in(name: str):  # type: ignore[no-untyped-def]
    def parse(value: bytes | None) -> int:
        try:
            return min(whole_number(header_text(value)), 2**31)
        except ValueError as problem:
            raise BadDeliverTo(f"{name} is the number of a partition: {problem}") from None

    return parse


def _replaced(keys: pa.Array, own: Ints, rows: Ints, values: pa.Array) -> pa.Array:
    """Return `keys` with null in the rows `own`, except in `rows`, which get `values`."""
    places = np.arange(len(keys))
    places[own] = -1
    places[rows] = len(keys) + np.arange(len(rows))
    both = pa.concat_arrays([keys, values.cast(keys.type)])
    return both.take(pa.array(places, mask=places < 0))


def _with_added(headers: pa.Array, own: Ints, added: Sequence[tuple[str, Origin]], records: pa.Table) -> pa.Array:
    """Return the lists of `headers`. In the rows `own`, headers are appended that say where the `records` come from."""
    if not added:
        return headers
    source = records.take(pa.array(own))
    columns = [_origin(source, what) for _, what in added]
    # A record without a key does not get the header for its key.
    present = np.stack([np.asarray(column.is_valid()) for column in columns], axis=1)
    flat = headers.flatten()
    lengths = np.asarray(pc.list_value_length(headers).fill_null(0)).astype(np.int64)
    ends = np.cumsum(lengths)
    # Headers of the first row that gets any, then headers of the second row, ...
    at = np.flatnonzero(present.reshape(-1))
    names = pa.array([name for name, _ in added], pa.string()).take(pa.array(at % len(added)))
    values = pa.concat_arrays(columns).take(pa.array((at % len(added)) * len(own) + at // len(added)))
    more = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    places = np.insert(
        np.arange(len(flat)), np.repeat(ends[own], present.sum(axis=1)), len(flat) + np.arange(len(more))
    )
    lengths[own] += present.sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    every = pa.concat_arrays([flat, more]).take(pa.array(places))
    is_null = np.asarray(headers.is_null())
    is_null[own] = False
    return pa.ListArray.from_arrays(pa.array(offsets), every, mask=pa.array(is_null)).cast(HEADERS)


def _origin(records: pa.Table, what: Origin) -> pa.Array:
    """Return the value of a header about the origin of each of `records`, as binary."""
    if what is Origin.SECONDS:
        # In whole numbers, rounded down: a publisher may choose a timestamp that no float has.
        seconds = records.column("timestamp_ms").to_numpy() // 1000
        return pa.array(seconds, pa.int64()).cast(pa.string()).cast(pa.binary())
    column = records.column(what.value)
    if what in (Origin.PARTITION, Origin.OFFSET):
        column = column.cast(pa.string())
    return one_array(column.cast(pa.binary()))
