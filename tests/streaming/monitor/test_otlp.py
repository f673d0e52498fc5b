"""The export of metrics to an OpenTelemetry collector, which gets the metrics that `/metrics` shows."""

from __future__ import annotations

import gzip
import logging
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from conf.load import load_settings
from streaming.local.free_port import free_port
from streaming.monitor import otlp
from streaming.monitor.monitored import monitored
from streaming.monitor.otlp import MetricsExport
from streaming.monitor.server import Health
from tests.eventually import assert_eventually


class Receiver(ThreadingHTTPServer):
    """Takes metrics as a collector does."""

    def __init__(self, port: int = 0) -> None:
        self.received: list[ExportMetricsServiceRequest] = []
        super().__init__(("127.0.0.1", port), self._handler())
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/metrics"
                receiver.received.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("delivered_messages", "Delivered.", ["topic"], registry=registry).labels("out").inc(7)
    Gauge("waiting_bytes", "Waiting.", registry=registry).set(2.5)
    step = Summary("batch_seconds", "Batches.", ["step"], registry=registry).labels("seal")
    step.observe(2)
    step.observe(3)
    late = Histogram("lateness_seconds", "Late.", ["topic"], buckets=[0.1, 1], registry=registry).labels("out")
    for seconds in (0.05, 0.06, 0.5, 30):
        late.observe(seconds)
    return registry


def _endpoint(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1/metrics"


def _monitored(registry: Collector, port: int) -> object:
    endpoint = f"monitor.otlp={_endpoint(port)}"
    settings = load_settings(None, [endpoint, "monitor.job=", "application_id=mine"], environ={})
    return monitored("job", settings, registry, Health)


def test_what_arrives_is_what_is_counted(receiver: Receiver, registry: CollectorRegistry) -> None:
    with MetricsExport(_endpoint(receiver.server_port), registry, {}, every_s=0.2):
        assert_eventually(lambda: len(receiver.received) >= 2)
    (resource,) = receiver.received[-1].resource_metrics
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    delivered = metrics["delivered_messages_total"]
    assert delivered.sum.is_monotonic
    (point,) = delivered.sum.data_points
    assert (point.as_double, point.attributes[0].key, point.attributes[0].value.string_value) == (7, "topic", "out")
    assert metrics["waiting_bytes"].gauge.data_points[0].as_double == 2.5
    assert metrics["waiting_bytes"].unit == "By"
    assert metrics["batch_seconds_count"].sum.data_points[0].as_double == 2
    assert metrics["batch_seconds_sum"].sum.data_points[0].as_double == 5
    (late,) = metrics["lateness_seconds"].histogram.data_points
    assert metrics["lateness_seconds"].unit == "s"
    assert (late.count, list(late.bucket_counts), list(late.explicit_bounds)) == (4, [2, 1, 1], [0.1, 1.0])
    assert late.sum == pytest.approx(30.61)
    assert not late.HasField("min")


def test_the_end_of_the_process_sends_the_last_counts(receiver: Receiver, registry: CollectorRegistry) -> None:
    with _monitored(registry, receiver.server_port):  # type: ignore[attr-defined]
        pass
    (received,) = receiver.received
    attributes = {pair.key: pair.value.string_value for pair in received.resource_metrics[0].resource.attributes}
    assert (attributes["service.name"], attributes["service.namespace"]) == ("delayline-job", "mine")


def test_a_collector_that_is_away_is_one_warning_and_gets_later_counts(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, collect = free_port(), registry.collect
    exports: list[Iterable[Metric]] = []

    def counted() -> Iterable[Metric]:
        exports.append(collected := collect())
        return collected

    def warnings() -> int:
        return sum(record.name == otlp.__name__ for record in caplog.records)

    monkeypatch.setattr(registry, "collect", counted)
    export = MetricsExport(_endpoint(port), registry, {}, every_s=0.2, timeout_s=0.5)
    with caplog.at_level(logging.WARNING), export:
        # By then, three exports have failed.
        assert_eventually(lambda: len(exports) >= 4)
        assert warnings() == 1
        receiver = Receiver(port)
        try:
            assert_eventually(lambda: len(receiver.received) >= 2)
        finally:
            receiver.close()
    assert warnings() <= 2


def test_login_of_a_collector_that_is_away_is_not_logged(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = f"http://me:hunter2@127.0.0.1:{free_port()}/v1/metrics"
    with caplog.at_level(logging.DEBUG), MetricsExport(endpoint, registry, {}, every_s=0.2, timeout_s=0.5):
        assert_eventually(lambda: any(record.name == otlp.__name__ for record in caplog.records))
    assert f"{endpoint.replace('me:hunter2@', '')} refuses metrics" in caplog.text
    assert "hunter2" not in caplog.text
