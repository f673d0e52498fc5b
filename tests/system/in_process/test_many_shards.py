"""Shards that share state partitions: the messages that they seal, load and stage are delivered once, in order."""

from __future__ import annotations

from collections import Counter

import pytest

from state.group_keys import state_partitions
from state.shards import shard_of
from tests.job_log import sealed_messages
from tests.system.conftest import Application
from tests.system.in_process.conftest import MakeJob

pytestmark = pytest.mark.system

_SHARDS, _OUTPUT_PARTITIONS = 32, 20


@pytest.mark.thorough
def test_messages_of_shards_that_share_a_state_partition_are_delivered_once_in_order(
    application: Application, make_job: MakeJob, caplog: pytest.LogCaptureFixture
) -> None:
    shards = {shard_of(application.output, number, _SHARDS) for number in range(_OUTPUT_PARTITIONS)}
    shared = Counter(shard % state_partitions(_SHARDS) for shard in shards)
    assert max(shared.values()) > 1, "otherwise no partition is shared"
    # The state stage stages messages due in the first seconds, and the window the rest.
    own = (f"bucket.shards={_SHARDS}", "bucket.max_messages=8", "forward.processes=0", "clock.horizon=5s")
    job, ledger = make_job(*own, partitions=_OUTPUT_PARTITIONS)
    for number in range(600):
        delay_ms = 1_000 + 7919 * number % 24_000
        header = ("deliver-after", f"{delay_ms}ms".encode())
        ledger.publish(
            application.input, b"%d" % number, [header], key=b"%d" % (number % 60), output=application.output,
            delay_ms=delay_ms,
        )  # fmt: skip
    ledger.flush()
    # On a slow machine some fall due before they are accepted.
    job.run_until(lambda: ledger.verify_after_outage(120, least_checked=0.1))
    assert sealed_messages(caplog.text) > 100
