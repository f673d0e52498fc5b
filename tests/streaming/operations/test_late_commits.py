"""The commit request of a resend reaches the broker late, when its next transaction is open."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Producer

from conf.load import load_settings
from sinks.topics.topics import ensure_topics
from streaming.local.broker import EmbeddedBroker
from streaming.operations import resend
from tests.frame_proxy import FENCED, FrameProxy
from tests.sinks.committed_records import committed


def test_a_commit_that_comes_late_resends_nothing_twice(
    proxied: EmbeddedBroker, proxy: FrameProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resend, "MAX_CHUNK_LETTERS", 1)
    name = f"app-{uuid.uuid4().hex[:8]}"
    topics = [f"topics.{role}={name}-{role}" for role in ("input", "output", "dead_letter")]
    own = [f"application_id={name}", f"kafka.bootstrap_servers={proxied.bootstrap}", "monitor.job="]
    settings = load_settings(None, [*own, *topics], environ={})
    ensure_topics(settings, 1)
    producer = Producer({"bootstrap.servers": proxied.bootstrap})
    for number in range(3):
        identity = f"{name}-input/0/{number}".encode()
        headers: list[tuple[str, str | bytes | None]] = [
            ("delayline-id", identity),
            ("delayline-error", b"bad-deliver-after"),
            ("delayline-error-text", b"why"),
            ("delayline-timestamp", b"1"),
        ]
        producer.produce(settings.topics.dead_letter, b"%d" % number, None, 0, headers=headers)
    assert producer.flush(60) == 0
    proxy.hold()
    request = resend.Request(checked=False, stamped_now=True)
    assert [outcome.refusal for outcome in resend.resend(settings, request)] == [None] * 3
    assert [record.value() for record in committed(proxied, settings.topics.input[0])] == [b"0", b"1", b"2"]
    assert proxy.answer in FENCED
