from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_murmur2

from sources.intake.partitioner import murmur2, partitions_for
from tests.thorough import examples

# From Kafka's own UtilsTest.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
KEYS = st.lists(st.one_of(st.binary(max_size=20), st.binary(min_size=100, max_size=130)), max_size=30)


def test_hashes_are_those_of_kafkas_own_tests() -> None:
    hashes = murmur2(pa.array(VECTORS, pa.binary())).view(np.int32)
    assert dict(zip(VECTORS, hashes.tolist(), strict=True)) == VECTORS


@given(KEYS)
@settings(max_examples=examples(100))
def test_a_column_of_any_keys_is_hashed_as_the_client_hashes_each(keys: list[bytes]) -> None:
    assert murmur2(pa.array(keys, pa.binary())).tolist() == [kafka_murmur2(key) for key in keys]


@given(KEYS, st.data())
@settings(max_examples=examples(50))
def test_a_slice_gives_the_hashes_of_its_own_keys(keys: list[bytes], data: st.DataObject) -> None:
    start, length = data.draw(st.integers(0, len(keys))), data.draw(st.integers(0, len(keys)))
    part = pa.array(keys, pa.binary()).slice(start, length)
    assert murmur2(part).tolist() == [kafka_murmur2(key) for key in keys[start : start + length]]


def test_keys_hashed_in_parts_have_the_same_hashes() -> None:
    keys = pa.array([b"%010d" % number for number in range(50)], pa.binary())
    whole = murmur2(keys).tolist()
    assert murmur2(keys, bytes_at_once=35).tolist() == whole


@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.binary(max_size=8)), st.integers(0, 200), st.integers(1, 100)),
        max_size=30,
    )
)
@settings(max_examples=examples(100))
def test_a_key_chooses_the_partition_and_without_one_the_input_partition_does(
    rows: list[tuple[bytes | None, int, int]],
) -> None:
    keys, inputs, counts = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    chosen = partitions_for(
        pa.array(keys, pa.binary()), np.array(inputs, dtype=np.int64), np.array(counts, dtype=np.int64)
    )
    assert chosen.tolist() == [
        partition % count if key is None else (kafka_murmur2(key) & 0x7FFFFFFF) % count
        for key, partition, count in rows
    ]
