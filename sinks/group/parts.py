"""The parts of the work that a process has, shards or lanes: it works on each in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

log = logging.getLogger(__name__)


class PartTaken(Exception):
    """Another process has taken the part, or is about to."""


class PartThread:
    """Works on the part `number` until it is stopped, or another process takes the part.

    `ended` is set when it has stopped; `error` is then its error, or None. `has_worked` says whether it has completed
    any of its work. Until `in_doubt_until_s` (monotonic) it may be unable to, as it was taken in vain before.
    """

    def __init__(self, kind: str, number: int, work: Callable[[], None]) -> None:
        """`kind` is what a part is called.

        `work` returns when the thread is to stop, or to be called again. Any error that it raises ends the thread.
        """
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self.has_worked = False
        self.in_doubt_until_s = 0.0
        self.kind, self._number, self._work = kind, number, work
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{kind}-{number}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to stop."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the end of the thread."""
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._work()
        except PartTaken as taken:
            log.warning("%s %d: %s", self.kind, self._number, taken)
        except BaseException as error:  # noqa: BLE001, the process raises it
            self.error = error
        finally:
            self.ended.set()


Part = TypeVar("Part", bound=PartThread)


class Parts(dict[int, Part]):
    """The parts that a process works on, by number.

    One that another process has taken may come back after `retake_s`, if the group still gives it to this process. If
    it is taken within `longest_s` and has not worked, the next pause is twice as long, up to `longest_s`: a process
    that can take a part, but cannot do its work, leaves it to the other one. `now` is a monotonic clock, in s.
    """

    def __init__(
        self,
        make: Callable[[int], Part],
        retake_s: float,
        longest_s: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._make, self._retake_s, self._longest_s, self._now = make, retake_s, longest_s, now
        # By part: when it was made last, the last pause after it was taken, and when it may be made again.
        self._made_s: dict[int, float] = {}
        self._pause_s: dict[int, float] = {}
        self._free_s: dict[int, float] = {}

    def add(self, numbers: Iterable[int]) -> list[Part]:
        """Make the missing ones of the parts `numbers`, and return them. They are not started."""
        now_s = self._now()
        new = [number for number in sorted(numbers) if number not in self and now_s >= self._free_s.get(number, 0.0)]
        for number in new:
            self[number], self._made_s[number] = self._make(number), now_s
            if self._pause_s.get(number, 0.0) > self._retake_s:
                self[number].in_doubt_until_s = now_s + self._longest_s
        return [self[number] for number in new]

    def close(self, numbers: Iterable[int]) -> None:
        """Stop the parts `numbers` that are here, and wait for their ends."""
        closing = [number for number in numbers if number in self]
        for number in closing:
            self[number].stop()
        for number in closing:
            self.pop(number).join()

    def forget_ended(self) -> None:
        """Forget the parts that have ended. Raises the error of one."""
        for number, part in list(self.items()):
            if part.ended.is_set():
                del self[number]
                if part.error is not None:
                    raise part.error
                self._leave(number, part)

    def _leave(self, number: int, part: Part) -> None:
        """Set when `part`, which was taken, may be made again."""
        now_s = self._now()
        in_vain = not part.has_worked and now_s < self._made_s[number] + self._longest_s
        last_s = self._pause_s.get(number, 0.0) if in_vain else 0.0
        self._pause_s[number] = pause_s = max(self._retake_s, min(2 * last_s, self._longest_s))
        self._free_s[number] = now_s + pause_s
        if pause_s > self._retake_s:
            log.warning(
                "%s %d was taken again before this process completed any work on it. Can this host reach all brokers? "
                "Leaving it to others for %.0f s",
                part.kind, number, pause_s,
            )  # fmt: skip
