"""Sends the metrics of `/metrics` to an OpenTelemetry collector, under the same names.

The SDK's exporter sends; its instruments are not used, since what they would count is counted already. A summary
becomes two sums, `…_count` and `…_sum`. Options such as headers and certificates come from the SDK's own variables
(`OTEL_EXPORTER_OTLP_…`), further attributes from `OTEL_RESOURCE_ATTRIBUTES`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from types import TracebackType

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from conf.secrets import without_login

log = logging.getLogger(__name__)

_EVERY_S = 15.0
_TIMEOUT_S = 10.0
_CUMULATIVE = AggregationTemporality.CUMULATIVE
_UNITS = {"seconds": "s", "bytes": "By"}


class MetricsExport:
    """Sends the metrics of `collector` to `endpoint` every quarter of a minute, and once more at the end.

    A context manager. A collector that does not answer is a warning in the log, once for each outage.
    """

    def __init__(
        self,
        endpoint: str,
        collector: Collector,
        attributes: Mapping[str, str],
        every_s: float = _EVERY_S,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """`endpoint` is a URL with its path; `attributes` say which process this is."""
        self._every_s = every_s
        self._collector = collector
        self._exporter = OTLPMetricExporter(endpoint=endpoint, timeout=timeout_s)
        # Everybody may read the newest warnings.
        self._shown_endpoint = without_login(endpoint)
        self._resource = Resource.create(dict(attributes))
        self._begun_ns = time.time_ns()
        self._fails = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-export", daemon=True)

    def __enter__(self) -> MetricsExport:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            self._try_to_send()
        # The end of the process does not wait for a collector that is away.
        if not self._fails:
            self._try_to_send()

    def _try_to_send(self) -> None:
        try:
            self._send()
        except Exception:
            log.exception("could not send metrics")

    def _send(self) -> None:
        families = self._collector.collect()
        metrics = list(_metrics(families, self._begun_ns, time.time_ns()))
        scope = ScopeMetrics(InstrumentationScope("delayline"), metrics, "")
        # The exporter tries again for its time-out, and says each failure in its own log.
        result = self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))
        fails = result is not MetricExportResult.SUCCESS
        if fails and not self._fails:
            log.warning("%s refuses metrics", self._shown_endpoint)
        self._fails = fails


def _metrics(families: Iterable[Family], begun_ns: int, now_ns: int) -> Iterator[Metric]:
    for family in families:
        unit = _UNITS.get(family.name.rpartition("_")[2], "1")
        if family.type == "histogram":
            histogram = Histogram(list(_histogram_points(family.samples, begun_ns, now_ns)), _CUMULATIVE)
            yield Metric(family.name, family.documentation, unit, histogram)
            continue
        by_name: dict[str, list[NumberDataPoint]] = {}
        for sample in family.samples:
            point = NumberDataPoint(dict(sample.labels), begun_ns, now_ns, sample.value)
            by_name.setdefault(sample.name, []).append(point)
        for name, points in by_name.items():
            grows = family.type in ("counter", "summary")
            yield Metric(name, family.documentation, unit, Sum(points, _CUMULATIVE, True) if grows else Gauge(points))


def _histogram_points(samples: Iterable[Sample], begun_ns: int, now_ns: int) -> Iterator[HistogramDataPoint]:
    """Yield a point for each set of labels. Prometheus counts up to each bound, OpenTelemetry between two."""
    below: dict[tuple[tuple[str, str], ...], list[tuple[float, int]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            below.setdefault(labels, []).append((float(sample.labels["le"]), int(sample.value)))
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    for labels, counted in below.items():
        counted.sort()
        counts = [counted[0][1], *(after - before for (_, before), (_, after) in pairwise(counted))]
        yield HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=begun_ns,
            time_unix_nano=now_ns,
            count=counted[-1][1],
            sum=sums[labels],
            bucket_counts=counts,
            explicit_bounds=[bound for bound, _ in counted[:-1]],
            # Not counted. The protocol may leave them out.
            min=None,  # type: ignore[arg-type]
            max=None,  # type: ignore[arg-type]
        )
