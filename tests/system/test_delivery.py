"""Mixed messages, and many of one millisecond, through the whole service: each once, on time and in order."""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from state.message import DELIVER_AT_HEADER
from streaming.local.free_port import free_port
from streaming.monitor.client import ask
from tests.eventually import assert_eventually
from tests.job_log import sealed_messages
from tests.system.conftest import Application, MakeService
from tests.system.ledger import Ledger
from tests.system.load import publish_mixed

# How far apart the release process and the subscriber may see the same commit on a busy machine. The release process
# gets its acknowledgement, and the subscriber fetches the records that it made visible.
_APART_MS = 1_000


def test_mixed_messages_are_delivered_once_on_time_and_in_order_and_the_job_ends_on_sigterm(
    application: Application, make_service: MakeService
) -> None:
    job, release = (f"127.0.0.1:{free_port()}" for _ in range(2))
    # The window is smaller than a segment.
    service, ledger = make_service(
        "bucket.shards=3", "window.max_bytes=4096", f"monitor.job={job}", f"monitor.release={release}", partitions=4
    )
    service.start()
    together_ms = time.time_ns() // 1_000_000 + 12_000
    for number in range(500):
        at = [("deliver-at", b"%d" % together_ms)]
        ledger.publish(application.input, b"%d" % number, at, output=application.output, deliver_at_ms=together_ms)
    for wave in range(4):
        publish_mixed(ledger, application, 300, seed=wave)
    ledger.wait_for_all(60)
    # The start made all of these late. Some of the next ones are on time.
    publish_mixed(ledger, application, 300, seed=4, longest_ms=12_000)
    ledger.wait_for_all(60)
    ledger.verify()
    assert sealed_messages(service.log) > 100, "the thresholds should be low enough to seal"
    _check_release(release, application, ledger)
    _check_job(job, application, ledger, sealed_messages(service.log))
    assert service.stop() == 0, service.log[-3000:]


def _check_release(address: str, application: Application, ledger: Ledger) -> None:
    """Compare what the release process tells with what the subscriber got."""
    came = Counter(record.topic for record in ledger.got)
    letters = came.pop(application.dead, 0)
    seen = _scraped(address)
    assert {topic: seen["delivered_messages_total", topic] for topic in came} == came
    assert {topic: seen["delivery_lateness_seconds_count", topic] for topic in came} == came
    assert sum(count for (name, _), count in seen.items() if name == "dead_letters_total") == letters
    assert {topic: seen["early_messages_total", topic] for topic in came} == dict.fromkeys(came, 0)
    for topic in came:
        late_ms = _late_ms(ledger, topic)
        # The subscriber has a message about when its commit is acknowledged, or later.
        most_s = sum(late_ms) / 1000 + _APART_MS / 1000 * len(late_ms)
        assert 0 < seen["delivery_lateness_seconds_sum", topic] < most_s
    _check_histogram(address, ledger, came)
    assert_eventually(lambda: _scraped(address)["ready_messages", "0"] == 0, 10)
    assert_eventually(lambda: _asked(address, "/readyz")[0] == 200, 10)


def _check_histogram(address: str, ledger: Ledger, topics: Iterable[str]) -> None:
    """Compare, at each bound, how many messages were late by no more with what the subscriber measured."""
    bounds: dict[str, list[tuple[float, float]]] = {}
    for sample in _samples(address):
        if sample.name == "delayline_delivery_lateness_seconds_bucket":
            bounds.setdefault(sample.labels["topic"], []).append((float(sample.labels["le"]), sample.value))
    for topic in topics:
        late_ms = _late_ms(ledger, topic)
        for bound_s, count in bounds[topic]:
            least = sum(late <= 1000 * bound_s - _APART_MS for late in late_ms)
            most = sum(late <= 1000 * bound_s + _APART_MS for late in late_ms)
            assert least <= count <= most, f"{topic}, late by up to {bound_s} s: {count}, not {least} to {most}"


def _late_ms(ledger: Ledger, topic: str) -> list[int]:
    """Return by how much later than due the subscriber got each message of a topic."""
    own = (record for record in ledger.got if record.topic == topic)
    return [record.received_ms - int(record.last(DELIVER_AT_HEADER) or 0) for record in own]


def _check_job(address: str, application: Application, ledger: Ledger, sealed: int) -> None:
    assert_eventually(lambda: _scraped(address)["read_records_total", application.input] == len(ledger.sent), 10)
    seen = _scraped(address)
    # Batches leave out what forwarders took.
    forwarded = ledger.forwarded()
    accepted = sum(each.error is None and identity not in forwarded for identity, each in ledger.sent.items())
    assert seen["accepted_messages_total", application.input] == accepted
    assert seen["sealed_messages_total", ""] >= sealed
    # A batch may be running.
    assert 1 < seen["batch_seconds_count", "whole"] <= seen["batch_seconds_count", "state"]
    assert_eventually(lambda: _scraped(address).get(("waiting_messages", "mutable")) == 0, 10)
    assert_eventually(lambda: _scraped(address)["input_lag_records", application.input] == 0, 10)
    # Ready is another matter: with a horizon of two seconds, the pauses of a busy machine are too long.
    code, health = _asked(address, "/healthz")
    assert (code, health["live"]) == (200, True)


def _scraped(address: str) -> dict[tuple[str, str], float]:
    """Return the samples by name and by the value of the only label, if there is one."""
    return {
        (sample.name.removeprefix("delayline_"), next(iter(sample.labels.values()), "")): sample.value
        for sample in _samples(address)
        if "le" not in sample.labels
    }


def _samples(address: str) -> list[Sample]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return [sample for family in families for sample in family.samples]


def _asked(address: str, path: str) -> tuple[int, dict[str, Any]]:
    answer = ask(address, path)
    return answer.code, json.loads(answer.body)
