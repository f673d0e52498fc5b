"""How the query ends once a release process has failed for good."""

from __future__ import annotations

import time
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from conf.errors import ApplicationHeld, ProcessFailed
from streaming.job.gate import Gate
from streaming.job.query_watch import QueryWatch

_ASKING, _PROCESSING = "Getting offsets from KafkaV2[Subscribe[in]]", "Processing new data"


class _Local:
    """The Java context of a local session, in which the driver is the only executor."""

    @staticmethod
    def sc() -> Any:
        return SimpleNamespace(getExecutorMemoryStatus=lambda: SimpleNamespace(size=lambda: 1))


class Query:
    """A query that is in a batch for `batch_s` by its own clock, on which each look at it takes a second."""

    isActive = True

    def __init__(self, doing: str, batch_s: float) -> None:
        self.doing = doing
        self.now_s = 0.0
        self.stopped_s: float | None = None
        self._batch_s = batch_s

    @property
    def status(self) -> dict[str, Any]:
        self.now_s += 1
        return {"message": self.doing, "isTriggerActive": self.now_s < self._batch_s}

    def stop(self) -> None:
        self.stopped_s = self.now_s


def _watch(query: Query, check_lease: Any = lambda: None) -> None:
    """Watch `query` in a job with a release process that has failed again and again."""

    def failed() -> None:
        raise ProcessFailed("again and again")

    job: Any = SimpleNamespace(
        spark=SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=lambda _: None, master="local[2]", _jsc=_Local)),
        settings=SimpleNamespace(kafka=SimpleNamespace(outage_limit=300_000)),
        query=query,
        gate=Gate(),
        runner=SimpleNamespace(planned=None, wake=lambda: None),
        lease=SimpleNamespace(check_not_taken=check_lease),
        clock=SimpleNamespace(check=lambda _: None),
        processes=SimpleNamespace(check=failed),
        counts=SimpleNamespace(running={"load": time.monotonic() - 120}),
    )
    QueryWatch(job, lambda: query.now_s).wait(SimpleQueue())


def test_the_running_batch_ends_before_the_error_of_a_process_ends_the_query(caplog: pytest.LogCaptureFixture) -> None:
    query = Query(_PROCESSING, batch_s=100)
    with pytest.raises(ProcessFailed, match="again and again"):
        _watch(query)
    # Nobody has to guess for what it waits.
    assert caplog.text.count("the running batch has been in its step 'load'") == 1
    assert query.stopped_s is not None
    assert query.stopped_s >= 100


def test_the_error_of_a_process_does_not_wait_for_the_end_of_an_outage() -> None:
    query = Query(_ASKING, batch_s=1_000)
    with pytest.raises(ProcessFailed, match="again and again"):
        _watch(query)
    assert query.stopped_s is not None
    assert 5 <= query.stopped_s < 20


def test_a_batch_is_cut_off_if_the_lease_is_taken_while_the_error_of_a_process_waits_for_it() -> None:
    query = Query(_PROCESSING, batch_s=1_000)

    def check_lease() -> None:
        if query.now_s > 10:
            raise ApplicationHeld("taken")

    with pytest.raises(ApplicationHeld):
        _watch(query, check_lease)
    assert query.stopped_s is not None
    assert query.stopped_s < 20
