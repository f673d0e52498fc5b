"""The lateness of the last minute, and a clock that is set."""

from __future__ import annotations

import pyarrow as pa

from sinks.release.lateness import LatenessWindow

DAY_MS = 24 * 3_600_000


def test_what_was_released_while_the_clock_was_ahead_is_forgotten_once_it_is_right() -> None:
    window = LatenessWindow()
    begun_ms = 1_800_000_000_000
    window.add(pa.chunked_array([[begun_ms]]), begun_ms + DAY_MS)
    for number in range(10_000):
        at_ms = begun_ms + number * 20
        window.add(pa.chunked_array([[at_ms - 7]]), at_ms)
        assert window.quantiles(at_ms).messages <= 1 + 60_000 // 20
    newest = window.quantiles(begun_ms + 10_000 * 20 + 1_000)
    assert (newest.p50_ms, newest.p99_ms, newest.max_ms) == (7, 7, 7)
    assert len(window._samples) <= 60_000 // 20
