"""What a reading from outside holds to, while the job goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from streaming.status import _at_one_time


def test_the_table_is_that_of_the_last_committed_batch_though_others_are_committed_meanwhile() -> None:
    committed, versions = iter([1, 2, 2, 3, 4, 4]), iter([10, 11, 12, 13])
    checkpoint: Any = SimpleNamespace(last_committed=lambda: next(committed))
    store: Any = SimpleNamespace(exists=lambda: True, newest_version=lambda: next(versions))
    assert _at_one_time(checkpoint, store) == (4, 13)


def test_before_the_first_start_there_is_neither_batch_nor_table() -> None:
    checkpoint: Any = SimpleNamespace(last_committed=lambda: None)
    store: Any = SimpleNamespace(exists=lambda: False)
    assert _at_one_time(checkpoint, store) == (None, None)
