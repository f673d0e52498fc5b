"""The parts that a process works on: how each ends, and when a part that was taken is made again."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from sinks.group.parts import Parts, PartTaken, PartThread

_RETAKE_S = 0.5


class _Part(PartThread):
    """Raises `problem` once it is set; otherwise it works until it is stopped."""

    def __init__(self, problem: Exception | None, number: int) -> None:
        super().__init__("lane", number, self._work_on)
        self.problem = problem
        self.worked = threading.Event()

    def _work_on(self) -> None:
        if self.problem is not None:
            raise self.problem
        self.worked.set()
        self._stopping.wait(0.01)


def _parts(problem: Exception | None = None) -> Parts[_Part]:
    return Parts(partial(_Part, problem), _RETAKE_S)


def _start(parts: Parts[_Part], *numbers: int) -> list[int]:
    """Start the missing parts of `numbers`, and return their numbers."""
    new = parts.add(numbers)
    for part in new:
        part.start()
    return [number for number, part in parts.items() if part in new]


def test_a_part_works_until_it_is_closed() -> None:
    parts = _parts()
    assert _start(parts, 2, 0, 1) == [0, 1, 2]
    assert _start(parts, 2, 3) == [3]
    assert all(part.worked.wait(10) for part in parts.values())
    parts.forget_ended()
    assert not any(part.ended.is_set() for part in parts.values())
    closing = [parts[number] for number in (1, 3)]
    # Parts that a process never had, too.
    parts.close({1, 3, 7})
    assert list(parts) == [0, 2]
    assert all(part.ended.is_set() and part.error is None for part in closing)
    parts.close([*parts])
    # At once: no other process has taken them.
    assert _start(parts, 1) == [1]
    parts.close([1])


def test_a_part_that_was_taken_is_made_again_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    parts = _parts(PartTaken("another owner has taken it"))
    assert _start(parts, 3) == [3]
    assert parts[3].ended.wait(10)
    # It is here until it is forgotten.
    assert _start(parts, 3) == []
    begun_s = time.monotonic()
    parts.forget_ended()
    assert not parts
    assert _start(parts, 3, 4) == [4]
    while not _start(parts, 3):
        time.sleep(0.01)
    assert time.monotonic() >= begun_s + _RETAKE_S
    parts.close([3, 4])
    assert "lane 3: another owner has taken it" in caplog.text


def test_the_error_of_a_part_is_raised_by_the_process() -> None:
    error = ValueError("broken")
    parts = _parts(error)
    _start(parts, 0)
    assert parts[0].ended.wait(10)
    with pytest.raises(ValueError, match="broken") as raised:
        parts.forget_ended()
    assert raised.value is error
    assert not parts
