"""Sets of message ids, and which rows of a table they name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# The columns of a message's id.
ID = ("topic", "partition", "offset")
ID_SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
# The longest topic name that Kafka accepts.
MOST_TOPIC_CHARACTERS = 249
# Offsets, ascending and distinct, by (topic, partition).
Ids = Mapping[tuple[str, int], npt.NDArray[np.int64]]
NO_IDS: Ids = {}


def ids_in(messages: pa.Table | pa.RecordBatch) -> Ids:
    """Return the ids of a table that has the columns `ID`."""
    offsets = messages.column("offset").to_numpy()
    return {source: np.unique(offsets[rows]) for source, rows in by_source(messages)}


def table_of(ids: Ids) -> pa.Table:
    """Return `ids` as a table of `ID_SCHEMA`."""
    if not ids:
        return ID_SCHEMA.empty_table()
    topics, partitions = zip(*ids, strict=True)
    rows = np.repeat(np.arange(len(ids)), [len(own) for own in ids.values()])
    columns = [
        pa.array(topics, pa.string()).take(pa.array(rows)),
        np.array(partitions, dtype=np.int32)[rows],
        np.concatenate(list(ids.values())),
    ]
    return pa.table(columns, schema=ID_SCHEMA)


def table_from(rows: Iterable[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    """Return `rows` as a table of `schema`."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def ids_of(several: Iterable[tuple[str, int, int]]) -> Ids:
    """Return ids that are given one by one."""
    offsets: dict[tuple[str, int], set[int]] = {}
    for topic, partition, offset in several:
        offsets.setdefault((topic, partition), set()).add(offset)
    return {source: np.array(sorted(own), dtype=np.int64) for source, own in offsets.items()}


def to_set(ids: Ids) -> set[tuple[str, int, int]]:
    """Return `ids` one by one."""
    return {(*source, offset) for source, offsets in ids.items() for offset in offsets.tolist()}


def union(several: Iterable[Ids]) -> Ids:
    """Return the ids that any of `several` has."""
    pieces: dict[tuple[str, int], list[npt.NDArray[np.int64]]] = {}
    for ids in several:
        for source, offsets in ids.items():
            pieces.setdefault(source, []).append(offsets)
    return {source: own[0] if len(own) == 1 else np.unique(np.concatenate(own)) for source, own in pieces.items()}


def without(ids: Ids, others: Ids) -> Ids:
    """Return the `ids` that `others` lacks."""
    left = {source: own[~are_in(others[source], own)] if source in others else own for source, own in ids.items()}
    return {source: own for source, own in left.items() if len(own)}


def has_id(ids: Ids, message_id: tuple[str, int, int]) -> bool:
    """Return whether `ids` has the id of one message."""
    topic, partition, offset = message_id
    own = ids.get((topic, partition))
    return own is not None and bool(are_in(own, np.array([offset]))[0])


def count_of(ids: Ids) -> int:
    """Return how many ids there are."""
    return sum(map(len, ids.values()))


def contains_mask(messages: pa.Table, ids: Ids) -> npt.NDArray[np.bool_]:
    """Return which rows of a table, which has the columns `ID`, have one of `ids`."""
    found = np.zeros(messages.num_rows, dtype=bool)
    for _, rows, _ in rows_among(messages, ids):
        found[rows] = True
    return found


def is_below(messages: pa.Table, bounds: Mapping[tuple[str, int], int]) -> npt.NDArray[np.bool_]:
    """Return which offsets are below the bound of their input partition. Without a bound, no offset is below it."""
    own = np.zeros(messages.num_rows, dtype=np.int64)
    for source, rows in by_source(messages):
        own[rows] = bounds.get(source, 0)
    return np.asarray(messages.column("offset").to_numpy() < own)


def are_in(ascending: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which of `numbers` are in `ascending`, which has at least one number."""
    at = np.minimum(np.searchsorted(ascending, numbers), len(ascending) - 1)
    return np.asarray(ascending[at] == numbers)


def rows_among(
    messages: pa.Table, ids: Ids
) -> Iterator[tuple[tuple[str, int], npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield for each (topic, partition) the rows of `messages` that have one of `ids`, and the place of each in `ids`.

    `messages` has the columns `ID`. A place is an index into the array of the (topic, partition).
    """
    if not ids or not messages.num_rows:
        return
    offsets = messages.column("offset").to_numpy()
    for source, rows in by_source(messages):
        own = ids.get(source)
        if own is not None:
            # Both are numbers below 2^63, and `own` is sorted: faster than `np.isin`, which sorts both.
            places = np.minimum(np.searchsorted(own, offsets[rows]), len(own) - 1)
            found = own[places] == offsets[rows]
            yield source, rows[found], places[found]


def placing(table: pa.Table) -> Callable[[pa.Table], npt.NDArray[np.int64]]:
    """Return the function that returns for each message the row of `table` that has its id, or -1.

    Both have the columns `ID`. If several rows have an id, the first one counts. The table is sorted once, for all
    calls.
    """
    known = table.column("offset").to_numpy()
    rows_of = {source: rows[np.argsort(known[rows], kind="stable")] for source, rows in by_source(table)}

    def places(messages: pa.Table) -> npt.NDArray[np.int64]:
        found = np.full(messages.num_rows, -1, dtype=np.int64)
        offsets = messages.column("offset").to_numpy()
        for source, rows in by_source(messages) if rows_of else ():
            own = rows_of.get(source)
            if own is not None:
                at = own[np.minimum(np.searchsorted(known[own], offsets[rows]), len(own) - 1)]
                found[rows] = np.where(known[at] == offsets[rows], at, -1)
        return found

    return places


def places_in(table: pa.Table, messages: pa.Table) -> npt.NDArray[np.int64]:
    """Return for each message the row of `table` that has its id, or -1. Both have the columns `ID`."""
    if not (table.num_rows and messages.num_rows):
        return np.full(messages.num_rows, -1, dtype=np.int64)
    return placing(table)(messages)


def id_text(identity: tuple[str, int, int]) -> str:
    """Return one id as text, `topic/partition/offset`."""
    return "/".join(map(str, identity))


def id_texts(messages: pa.Table) -> pa.ChunkedArray:
    """Return each message's id as text, `topic/partition/offset`, of a table that has the columns `ID`."""
    topic, partition, offset = (messages.column(name) for name in ID)
    return pc.binary_join_element_wise(topic, partition.cast(pa.string()), offset.cast(pa.string()), "/")


def ids_from_texts(texts: pa.ChunkedArray | pa.Array) -> pa.Table:
    """Return the ids in texts that `id_texts` returned, without nulls, as a table of `ID_SCHEMA`."""
    parts = pc.split_pattern(texts, "/", max_splits=2, reverse=True)
    parts = parts.combine_chunks() if isinstance(parts, pa.ChunkedArray) else parts
    columns = [parts.flatten()[at :: len(ID)].cast(field.type) for at, field in enumerate(ID_SCHEMA)]
    return pa.table(columns, schema=ID_SCHEMA)


def parse_id(text: str) -> tuple[str, int, int]:
    """Return topic, partition and offset of a message id, `topic/partition/offset`. Raises ValueError."""
    topic, *place = text.rsplit("/", 2)
    if len(topic) > MOST_TOPIC_CHARACTERS:
        raise ValueError(f"a topic name has at most {MOST_TOPIC_CHARACTERS} characters")
    if not topic or len(place) != 2 or not all(each.isascii() and each.isdigit() for each in place):
        raise ValueError("a message id has the form topic/partition/offset")
    partition, offset = map(int, place)
    if partition >= 1 << 31 or offset >= 1 << 63:
        raise ValueError("the partition or the offset is larger than Kafka allows")
    return topic, partition, offset


def by_source(messages: pa.Table | pa.RecordBatch) -> Iterable[tuple[tuple[str, int], npt.NDArray[np.int64]]]:
    """Yield each (topic, partition) in `messages`, and its rows.

    Sorts the rows once, however many sources there are: each request by a stranger may name another source.
    """
    if not messages.num_rows:
        return
    encoded = messages.column("topic").dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    topics, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)
    partitions = messages.column("partition").to_numpy().astype(np.int64)
    lowest = partitions.min()
    width = partitions.max() - lowest + 1
    keys = codes * width + (partitions - lowest)
    if len(topics) * width <= 1 << 16:
        # NumPy sorts these in linear time.
        keys = keys.astype(np.uint16)
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    firsts = np.concatenate([[0], np.flatnonzero(in_order[1:] != in_order[:-1]) + 1])
    sources = zip(codes[order[firsts]].tolist(), partitions[order[firsts]].tolist(), strict=True)
    for (code, partition), rows in zip(sources, np.split(order, firsts[1:]), strict=True):
        yield (topics[code], partition), rows
