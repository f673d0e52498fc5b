"""Signals that are deferred while a process starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import FrameType

import pytest

from conf.end_signals import END_SIGNALS, deferred


class _Ended(Exception):
    pass


def _end(number: int, frame: FrameType | None) -> None:
    raise _Ended(number)


@pytest.mark.parametrize("number", END_SIGNALS)
def test_a_signal_during_the_block_is_handled_after_it(number: signal.Signals) -> None:
    before = signal.signal(number, _end)
    completed = []

    def start() -> None:
        with deferred():
            os.kill(os.getpid(), number)
            completed.append(number)

    try:
        with pytest.raises(_Ended):
            start()
        assert completed == [number]
        with pytest.raises(_Ended):
            os.kill(os.getpid(), number)
    finally:
        signal.signal(number, before)


def test_an_ignored_signal_stays_ignored_in_a_child_and_others_do_not() -> None:
    before = {signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    before[signal.SIGTERM] = signal.signal(signal.SIGTERM, _end)
    script = "import signal; print(*(signal.getsignal(n) == signal.SIG_IGN for n in (signal.SIGHUP, signal.SIGTERM)))"
    try:
        with deferred():
            child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert child.communicate()[0].split() == ["True", "False"]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_in_another_thread_the_handlers_are_not_changed() -> None:
    before = {number: signal.getsignal(number) for number in END_SIGNALS}
    seen = {}

    def look() -> None:
        with deferred():
            seen.update({number: signal.getsignal(number) for number in END_SIGNALS})

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == before
