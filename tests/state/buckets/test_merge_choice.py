"""Which buckets are merged: few wait, and no byte is rewritten often, whatever the sizes of the seals."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, cycle, islice
from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.buckets.merge import choose, most_buckets
from tests.thorough import examples


def chosen(*sizes: int, fan_in: int = 4) -> list[int]:
    return choose(dict(enumerate(sizes)), fan_in)


def test_nothing_is_merged_while_there_are_fewer_buckets_of_each_size_than_the_fan_in() -> None:
    assert chosen() == chosen(5) == chosen(1, 1, 1) == chosen(64, 64, 64, 16, 16, 16, 4, 4, 4, 1, 1, 1) == []


def test_of_buckets_of_a_size_the_oldest_are_merged() -> None:
    assert chosen(9, 9, 9, 9) == [0, 1, 2, 3]
    assert chosen(9, 9, 9, 9, 9, 9) == [0, 1, 2, 3]
    assert choose({40: 5, 7: 5, 12: 5, 31: 5, 33: 5}, 4) == [7, 12, 31, 33]


def test_small_buckets_are_merged_before_large_ones() -> None:
    assert chosen(64, 64, 64, 64, 1, 1, 1, 1) == [4, 5, 6, 7]


def test_a_small_bucket_between_large_ones_is_merged_with_them() -> None:
    assert chosen(64, 1, 64, 64) == [0, 1, 2, 3]
    assert chosen(64, 64, 64, 1) == []


def test_buckets_without_bytes_are_merged_too() -> None:
    assert chosen(0, 0, 0, 0) == [0, 1, 2, 3]


@dataclass
class Storage:
    """The bytes of each sealed bucket, by number, as merges leave them; and how many bytes merges have rewritten."""

    fan_in: int
    sizes: dict[int, int] = field(default_factory=dict)
    rewritten: int = 0
    numbers: Iterator[int] = field(default_factory=count)

    def seal(self, size: int) -> None:
        """Seal a bucket, and merge until there is nothing to merge."""
        self.sizes[next(self.numbers)] = size
        while merging := choose(self.sizes, self.fan_in):
            waiting = sorted(self.sizes)
            at = waiting.index(merging[0])
            assert merging == waiting[at : at + len(merging)]
            assert 2 <= len(merging) <= self.fan_in
            merged = sum(self.sizes.pop(number) for number in merging)
            self.sizes[merging[-1]] = merged
            self.rewritten += merged


SEALS = 3000
_random = random.Random(1)
# The bytes of the buckets that are sealed one after the other.
SEQUENCES: dict[str, list[int]] = {
    "of one size": [1_000_000] * SEALS,
    "uniform": [_random.randint(1, 1_000_000) for _ in range(SEALS)],
    "exponential": [1 + int(_random.expovariate(1e-6)) for _ in range(SEALS)],
    "Pareto": [int(1000 * _random.paretovariate(1.1)) for _ in range(SEALS)],
    "of any order of magnitude": [int(10 ** _random.uniform(0, 7)) for _ in range(SEALS)],
    "huge and tiny in turn": list(islice(cycle([1_000_000, 1]), SEALS)),
    "ascending": list(range(1, SEALS + 1)),
    "descending": list(range(SEALS, 0, -1)),
    "ascending by a hundredth": [int(1.01**at) for at in range(SEALS)],
    "descending by a hundredth": [int(1.01**at) for at in reversed(range(SEALS))],
    "powers of two ascending": list(islice(cycle([2**power for power in range(20)]), SEALS)),
    "powers of two descending": list(islice(cycle([2**power for power in reversed(range(20))]), SEALS)),
    "one large for fifteen small": list(islice(cycle([1_000_000, *[1] * 15]), SEALS)),
    "one large for thirty small": list(islice(cycle([4096, *[1] * 31]), SEALS)),
    "one large for fifteen of each smaller size": list(
        islice(cycle([16**4, *(16**power for power in (3, 2, 1, 0) for _ in range(15))]), SEALS)
    ),
}


@pytest.mark.parametrize("fan_in", [2, 16])
@pytest.mark.parametrize("sizes", SEQUENCES.values(), ids=list(SEQUENCES))
def test_over_any_seals_the_number_of_buckets_grows_with_the_logarithm_of_their_bytes(
    sizes: list[int], fan_in: int
) -> None:
    storage, total = Storage(fan_in), 0
    for size in sizes:
        storage.seal(size)
        total += size
        assert len(storage.sizes) <= most_buckets(total, fan_in)
    assert sum(storage.sizes.values()) == total


@given(st.lists(st.integers(0, 2**20), max_size=200), st.integers(2, 20))
@settings(max_examples=examples(100))
def test_over_any_short_run_of_seals_adjacent_buckets_are_merged_and_few_wait(sizes: list[int], fan_in: int) -> None:
    storage, total = Storage(fan_in), 0
    for size in sizes:
        storage.seal(size)
        total += size
        assert len(storage.sizes) <= most_buckets(total, fan_in)
    assert sum(storage.sizes.values()) == total


@pytest.mark.parametrize("fan_in", [2, 4, 16])
def test_as_many_buckets_as_are_allowed_can_wait(fan_in: int) -> None:
    sizes = [fan_in**level for level in (3, 2, 1, 0) for _ in range(fan_in - 1)]
    assert chosen(*sizes, fan_in=fan_in) == []
    assert len(sizes) == most_buckets(sum(sizes), fan_in)


@pytest.mark.parametrize(("fan_in", "powers"), [(2, 10), (4, 5), (16, 3)])
def test_seals_of_one_size_are_rewritten_once_for_each_power_of_the_fan_in(fan_in: int, powers: int) -> None:
    storage = Storage(fan_in)
    for _ in range(fan_in**powers):
        storage.seal(1000)
    assert len(storage.sizes) == 1
    assert storage.rewritten == powers * 1000 * fan_in**powers


@pytest.mark.parametrize("fan_in", [2, 16])
@pytest.mark.parametrize("sizes", SEQUENCES.values(), ids=list(SEQUENCES))
def test_over_any_seals_a_byte_is_rewritten_once_for_each_power_of_the_fan_in_that_its_bucket_grows_by(
    sizes: list[int], fan_in: int
) -> None:
    storage, total = Storage(fan_in), sum(sizes)
    for size in sizes:
        storage.seal(size)
    # A byte of a seal of `size` bytes can come up by this many levels: the power of the fan-in from there to all bytes,
    # and one more, since levels are rounded down. One more rewrite is for smaller buckets that the byte's bucket takes
    # in without coming up.
    allowed = sum(size * log(total / size, fan_in) for size in sizes) / total + 1 + 1
    assert storage.rewritten / total <= allowed
