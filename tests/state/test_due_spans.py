"""The runs of due time by which a shard tells when its messages are due."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from state.due_spans import SPANS_MS, decode_runs, due_runs, encode_runs

_YEAR_MS = 366 * 86_400_000
# Due times relative to now: many that are close, and few that are far.
_dues = st.lists(st.one_of(st.integers(-1_000, 90_000), st.integers(-_YEAR_MS, 2 * _YEAR_MS)), max_size=40).map(sorted)


@given(_dues, st.integers(0, 2 * 10**12))
def test_runs_have_each_message_and_the_counts_of_spans_exactly(dues: list[int], now_ms: int) -> None:
    dues_ms = np.array(dues, dtype=np.int64) + now_ms
    runs = decode_runs(encode_runs(due_runs(dues_ms, now_ms)))
    assert sum(run.messages for run in runs) == len(dues)
    assert [run.first_ms for run in runs] == sorted(run.first_ms for run in runs)
    assert {run.first_ms for run in runs} | {run.last_ms for run in runs} <= set(dues_ms.tolist())
    for run in runs:
        within = (dues_ms >= run.first_ms) & (dues_ms <= run.last_ms)
        assert run.messages == within.sum()
    for span_ms in SPANS_MS.values():
        below = sum(run.messages for run in runs if run.last_ms < now_ms + span_ms)
        assert below == (dues_ms < now_ms + span_ms).sum()


def test_a_full_bucket_takes_few_kilobytes() -> None:
    dues_ms = np.arange(0, 2 * _YEAR_MS, _YEAR_MS // 10_000) - 10_000
    assert len(encode_runs(due_runs(dues_ms, 0))) < 4_000
