"""How many records a batch may read, by the records that the batches before have read."""

from __future__ import annotations

from pyspark.sql import Row

from conf.sections import LimitSettings
from state.buckets.operator import ASKED, DUE, KEPT, SEALED
from streaming.job.inputs.batch_size import BatchSize, first_size, record_bytes

_MOST, _MB = 500_000, 1024 * 1024
# 50,000 of these take a gigabyte.
_LIMITS = LimitSettings(messages_per_trigger=_MOST, max_message_bytes=20_000)
# The duration of a batch without records, and the time that each small record adds, in s.
_FIXED_S, _EACH_S = 1.0, 1e-5


def _size() -> BatchSize:
    """The size after an idle batch."""
    size = BatchSize(_LIMITS, 128 * _MB)
    size.done(0, None, _FIXED_S)
    return size


def _after_backlog(size: BatchSize, record_bytes: float, each_s: float, batches: int = 10) -> list[int]:
    """Read a backlog of equal records, and return the sizes of the batches after these."""
    sizes = []
    for _ in range(batches):
        size.done(size.records, record_bytes, _FIXED_S + each_s * size.records)
        sizes.append(size.records)
    return sizes


def test_batches_of_a_backlog_of_small_messages_grow_to_the_most_that_is_allowed() -> None:
    sizes = [first_size(_LIMITS), *_after_backlog(_size(), 200, _EACH_S)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == _MOST
    # Not at once: other records may follow.
    assert sizes[1] < _MOST


def test_no_batch_is_larger_than_allowed() -> None:
    few = LimitSettings(messages_per_trigger=10)
    assert first_size(few) == 10
    size = BatchSize(few, 128 * _MB)
    assert _after_backlog(size, 200, _EACH_S) == [10] * 10


def test_a_batch_of_a_backlog_of_large_messages_is_bounded_by_bytes() -> None:
    for nbytes in (10_000, 900_000, 64 * _MB):
        size = _size()
        # Each batch is quick, which does not count.
        (records,) = set(_after_backlog(size, nbytes, 0.0))
        assert 0 < records * nbytes <= 128 * _MB < (records + 1) * nbytes
    # A single message is read in any case.
    assert set(_after_backlog(_size(), 200 * _MB, 0.0)) == {1}


def test_batches_are_smaller_where_records_take_long() -> None:
    """This does not apply where all batches take long: smaller ones would take in less, and fall further behind."""
    records = _after_backlog(_size(), 200, 1e-4)[-1]
    assert records == 50_000
    slow = BatchSize(_LIMITS, 128 * _MB)
    slow.done(0, None, 60.0)
    slow.done(50_000, 200, 60.5)
    assert slow.records == 4 * 50_000
    # However slow a batch was.
    size = _size()
    size.done(100, 200, 600.0)
    assert size.records == 20_000


def test_records_that_get_larger_make_one_batch_too_large_and_no_more() -> None:
    size = _size()
    before = _after_backlog(size, 200, _EACH_S)[-1]
    after = _after_backlog(size, 1_000_000, 1e-2)
    assert after[0] < before / 1_000
    # They may get smaller again.
    assert _after_backlog(size, 200, _EACH_S)[-1] == before


def test_after_few_records_a_batch_of_a_backlog_begins_small() -> None:
    size = _size()
    _after_backlog(size, 200, _EACH_S)
    size.done(100, 200, _FIXED_S)
    assert size.records == first_size(_LIMITS)


def test_the_first_batch_of_a_start_is_bounded_by_the_largest_message_that_is_allowed() -> None:
    for nbytes in (_MB, 64 * _MB):
        records = first_size(LimitSettings(max_message_bytes=nbytes))
        assert records * nbytes == 1024 * _MB
    assert first_size(LimitSettings(max_message_bytes=1)) == 50_000


def test_batches_grow_step_by_step_as_long_as_no_size_is_known() -> None:
    """Forwarders take all records, and the first ones that they leave may be large."""
    size = BatchSize(LimitSettings(messages_per_trigger=_MOST, max_message_bytes=_MB), 128 * _MB)
    sizes = [size.records]
    for _ in range(3):
        size.done(size.records, None, _FIXED_S)
        sizes.append(size.records)
    # Not slower than forwarders read, but no batch of hundreds of gigabytes.
    assert sizes == [1_024, 4_096, 16_384, 50_000]
    size.done(size.records, None, _FIXED_S)
    assert size.records == 50_000
    # One message is enough.
    size.done(50_000, 200, _FIXED_S)
    assert size.records == 200_000


def test_a_batch_without_records_changes_nothing() -> None:
    size = _size()
    before = _after_backlog(size, 900_000, 1e-2)[-1]
    size.done(0, None, _FIXED_S)
    size.done(0, 10, 100.0)
    assert size.records == before


def test_the_size_of_a_record_is_what_it_leaves_to_a_batch() -> None:
    def row(kind: str, count: int, nbytes: int) -> Row:
        return Row(kind=kind, count=count, bytes=nbytes)

    rows = [row(DUE, 1, 100), row(SEALED, 2, 500), row(KEPT, 1, 200), row(ASKED, 5, 9_000)]
    assert record_bytes(rows, 3) == 200.0
    # Most records were taken by forwarders, and few large messages are left.
    assert record_bytes(rows, 800) == 1.0
    assert record_bytes([row(KEPT, 0, 0)], 10) is None
    assert record_bytes([], 0) is None
