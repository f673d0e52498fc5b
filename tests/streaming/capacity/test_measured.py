"""The model of cost against the results of `benchmarks/scale`, which are kept with the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.load import VALUE_BYTES
from benchmarks.scale_runs import Run, read_runs
from conf.load import load_settings
from streaming.capacity.model import Load, capacity_of

_RESULTS = Path(__file__).parents[3] / "benchmarks/results"
RUNS = [run for file in sorted(_RESULTS.glob("scale*.json")) for run in read_runs(file)]
_YEAR_S = 366 * 86_400
# With a key of eight bytes, and a header with an instant.
_SIZE = VALUE_BYTES + 8 + 23
_WITHIN = 0.2
# For 23 minutes at full speed, buckets came faster than the merges took them: there were more buckets, and more files.
_MERGES_BEHIND = (100_000_000,)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.messages} on {run.provenance['date']}")
def test_the_model_is_within_a_fifth_of_what_was_measured(run: Run) -> None:
    capacity = capacity_of(Load(2 * run.messages / _YEAR_S, _YEAR_S, _SIZE), load_settings())
    measured = run.waiting
    stored = measured["disk_live_bytes_per_message"] * run.messages
    assert capacity.stored == pytest.approx(stored, rel=_WITHIN)
    assert capacity.segments == pytest.approx(measured["recovered_segments"], rel=_WITHIN)
    assert capacity.metadata == pytest.approx(measured["recovered_metadata_bytes"], rel=_WITHIN)
    assert capacity.restart_s == pytest.approx(measured["restart_s"], rel=_WITHIN)
    assert capacity.job_memory / 2**20 == pytest.approx(measured["rss_mb_job_steady"], rel=_WITHIN)
    if run.messages not in _MERGES_BEHIND:
        assert measured["recovered_buckets"] <= capacity.most_buckets
        assert measured["live_files"] <= capacity.most_files
    assert measured["recovered_segments"] <= capacity.most_segments


def test_there_are_results_to_compare_with() -> None:
    assert RUNS
