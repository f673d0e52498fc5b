"""Mixed messages, and many of one millisecond, through the whole service: each once, on time and in order."""

from __future__ import annotations

import time

from tests.job_log import sealed_messages
from tests.system.conftest import Application, MakeService
from tests.system.load import publish_mixed


def test_mixed_messages_are_delivered_once_on_time_and_in_order_and_the_job_ends_on_sigterm(
    application: Application, make_service: MakeService
) -> None:
    # The window is smaller than a segment.
    service, ledger = make_service("bucket.shards=3", "window.max_bytes=4096", partitions=4)
    service.start()
    together_ms = time.time_ns() // 1_000_000 + 12_000
    for number in range(500):
        at = [("deliver-at", b"%d" % together_ms)]
        ledger.publish(application.input, b"%d" % number, at, output=application.output, deliver_at_ms=together_ms)
    for wave in range(4):
        publish_mixed(ledger, application, 300, seed=wave)
    ledger.wait_for_all(60)
    ledger.verify()
    assert sealed_messages(service.log) > 100, "the thresholds should be low enough to seal"
    assert service.stop() == 0, service.log[-3000:]
