"""The commit request of a heartbeat reaches the broker late, when the next heartbeat is written."""

from __future__ import annotations

import uuid
from contextlib import closing

from conf.load import load_settings
from sinks.internal_topics.lease import HeldLease
from sinks.topics.topics import ensure_topics
from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually
from tests.frame_proxy import FENCED, FrameProxy


def test_a_commit_that_comes_late_does_not_end_the_next_heartbeat(proxied: EmbeddedBroker, proxy: FrameProxy) -> None:
    own = [f"application_id=app-{uuid.uuid4().hex[:8]}", f"kafka.bootstrap_servers={proxied.bootstrap}"]
    settings = load_settings(None, [*own, "lease.period=5s", "monitor.job="], environ={})
    ensure_topics(settings)
    with closing(HeldLease(settings, "run")) as lease:
        proxy.hold()
        proxy.wait_until_held()
        assert_eventually(lambda: proxy.answer is not None, 60)
        assert proxy.answer in FENCED
        lease.check_now()
