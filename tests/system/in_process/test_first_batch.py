"""The first new batch after a time without batches stages what fell due meanwhile, and does not seal it before."""

from __future__ import annotations

import json
import re
import time
from collections import Counter

import pytest

from conf import failpoints
from tests.eventually import assert_eventually
from tests.system.checkpoint_files import accepted, newest
from tests.system.conftest import Application
from tests.system.in_process.conftest import MakeJob

pytestmark = pytest.mark.system

# Accepted before they are due, also on a busy machine.
_DELAY_MS = 15_000


@pytest.mark.parametrize(
    ("point", "is_planned"),
    [
        pytest.param("batch-begun", True, id="a batch is replayed that has done nothing"),
        pytest.param("batch-done", True, id="a batch is replayed that was done", marks=pytest.mark.thorough),
        pytest.param("batch-begun", False, id="no batch is replayed", marks=pytest.mark.thorough),
    ],
)
def test_the_first_new_batch_after_a_failure_and_a_pause_hands_over_what_fell_due_and_seals_none_of_it(
    application: Application,
    make_job: MakeJob,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    point: str,
    is_planned: bool,
) -> None:
    job, ledger = make_job("bucket.max_messages=20")
    offsets, commits = application.checkpoint / "offsets", application.checkpoint / "commits"

    def publish(count: int, delay_ms: int) -> None:
        for number in range(count):
            header = ("deliver-after", f"{delay_ms}ms".encode())
            ledger.publish(application.input, b"%d" % number, [header], output=application.output, delay_ms=delay_ms)
        ledger.flush()

    # Another test may have passed the point in this process.
    monkeypatch.setattr(failpoints, "_passed", Counter())
    with monkeypatch.context() as failing:

        def fail_once_all_is_accepted() -> None:
            assert_eventually(lambda: newest(commits) >= 0, 60, "the first batch")
            publish(200, _DELAY_MS)
            assert_eventually(lambda: accepted(application.checkpoint) == 200, 60, "the acceptance")
            failing.setenv(failpoints.VARIABLE, f"{point}=raise")

        assert f"failpoint {point}" in job.failure(meanwhile=fail_once_all_is_accepted)
    assert newest(offsets) == newest(commits) + 1
    if not is_planned:
        # As an end between a commit and the next plan leaves it: nothing of this batch has run.
        planned = offsets / str(newest(offsets))
        planned.unlink()
        planned.with_name(f".{planned.name}.crc").unlink()
    first = newest(offsets) + 1
    # More than a batch keeps.
    publish(100, 500)
    last_due_ms = max(message.due_ms for message in ledger.sent.values())
    assert_eventually(lambda: time.time_ns() // 1_000_000 > last_due_ms, _DELAY_MS / 1000, "the last due time")

    started_ms = time.time_ns() // 1_000_000
    caplog.clear()

    def look_at_the_first_new_batch() -> None:
        assert_eventually(lambda: newest(commits) >= first, 60, "the first new batch")
        facts = json.loads((offsets / str(first)).read_text().splitlines()[1])
        assert facts["batchWatermarkMs"] > started_ms, caplog.text
        # A batch that neither stages nor seals messages logs nothing.
        assert not re.search(rf"batch {first}: .* sealed [1-9]", caplog.text), caplog.text
        # On a slow machine some fall due before they are accepted.
        ledger.verify_after_outage(60, least_checked=0.1)

    job.run_until(look_at_the_first_new_batch)
