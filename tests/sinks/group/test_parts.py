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


def test_a_part_that_is_taken_before_it_has_worked_is_left_for_longer_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s, in_doubt = 0.0, list[bool]()
    parts = Parts(partial(_Part, PartTaken("taken")), 1.0, 8.0, lambda: now_s)

    def pause_s(lives_s: float = 1.0, has_worked: bool = False) -> float:
        nonlocal now_s
        assert _start(parts, 3) == [3]
        assert parts[3].ended.wait(10)
        in_doubt.append(parts[3].in_doubt_until_s > now_s)
        parts[3].has_worked = has_worked
        now_s += lives_s
        parts.forget_ended()
        taken_s = now_s
        while not parts.add([3]):
            now_s += 0.5
        del parts[3]
        return now_s - taken_s

    assert [pause_s() for _ in range(6)] == [1, 2, 4, 8, 8, 8]
    assert in_doubt == [False, False, True, True, True, True]
    assert [pause_s(has_worked=True), pause_s(), pause_s(), pause_s(lives_s=8.0), pause_s()] == [1, 2, 4, 1, 2]
    assert "lane 3 was taken again before this process completed any work on it" in caplog.text
    assert "Leaving it to others for 8 s" in caplog.text


def test_the_error_of_a_part_is_raised_by_the_process() -> None:
    error = ValueError("broken")
    parts = _parts(error)
    _start(parts, 0)
    assert parts[0].ended.wait(10)
    with pytest.raises(ValueError, match="broken") as raised:
        parts.forget_ended()
    assert raised.value is error
    assert not parts
