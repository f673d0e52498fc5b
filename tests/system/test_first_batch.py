"""The first new batch after a time without batches hands over what fell due meanwhile: it does not seal it before."""

from __future__ import annotations

import json
import re
import signal
import time

import pytest

from tests.eventually import assert_eventually
from tests.system.checkpoint_files import newest
from tests.system.conftest import Application, MakeService

_DELAY_MS = 15_000


@pytest.mark.takes(60)
@pytest.mark.parametrize(
    ("point", "is_planned"),
    [
        pytest.param("batch-begun@4", True, id="a batch is replayed that has done nothing"),
        pytest.param("batch-done@4", True, id="a batch is replayed that was done", marks=pytest.mark.thorough),
        pytest.param("batch-begun@4", False, id="no batch is replayed"),
    ],
)
def test_the_first_new_batch_after_a_kill_and_a_pause_hands_over_what_fell_due_and_seals_none_of_it(
    application: Application, make_service: MakeService, point: str, is_planned: bool
) -> None:
    service, ledger = make_service("bucket.max_messages=20")

    def publish(count: int, delay_ms: int) -> None:
        for number in range(count):
            header = ("deliver-after", f"{delay_ms}ms".encode())
            ledger.publish(application.input, b"%d" % number, [header], output=application.output, delay_ms=delay_ms)
        ledger.flush()

    service.start(f"{point}=kill")
    publish(200, _DELAY_MS)
    published_s = time.monotonic()
    assert service.wait(120) == -signal.SIGKILL, service.log[-3000:]
    offsets, commits = application.checkpoint / "offsets", application.checkpoint / "commits"
    if not is_planned:
        # As a kill between a commit and the next plan leaves it: nothing of this batch has run.
        planned = offsets / str(newest(offsets))
        planned.unlink()
        planned.with_name(f".{planned.name}.crc").unlink()
        assert newest(offsets) == newest(commits)
    first = newest(offsets) + 1
    # More than a batch keeps.
    publish(100, 500)
    time.sleep(max(3.0, published_s + _DELAY_MS / 1000 + 1.0 - time.monotonic()))

    started_ms = time.time_ns() // 1_000_000
    service.start()
    assert_eventually(lambda: newest(commits) >= first, 60, "the first new batch")
    facts = json.loads((offsets / str(first)).read_text().splitlines()[1])
    assert facts["batchWatermarkMs"] > started_ms, service.log[-3000:]
    # A batch that neither hands over nor seals says nothing: on a slow machine the batch before has handed all over.
    assert not re.search(rf"batch {first}: .* sealed [1-9]", service.log), service.log[-3000:]
    ledger.verify_after_outage(60)
    assert service.stop() == 0, service.log[-3000:]
