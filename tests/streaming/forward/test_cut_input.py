"""An input partition loses its newest records, and new ones get their offsets: no forwarder and no batch may go on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from conf.errors import CheckpointMismatch
from sinks.topics.topic_ids import input_ids
from sinks.topics.topics import ensure_topics
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan
from state.lanes import lane_of
from streaming.forward.process import ForwardProcess
from streaming.job.lanes.claim_watch import ClaimWatch
from streaming.local.broker import EmbeddedBroker
from tests.eventually import PATIENCE, assert_eventually
from tests.quick_java import quick_broker
from tests.streaming.forward.bench import LANES, ForwardBench, ids, new_bench

_CUT = "/0 has lost records below offset 5, and forwarders have read up to there"


@pytest.fixture(scope="module")
def frail(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that is stopped, and started again without some records."""
    with quick_broker(tmp_path_factory.mktemp("frail"), heap="512m") as running:
        yield running


@dataclass(frozen=True)
class Cut:
    """Applications with a first input partition that has lost records while the broker was down.

    Claims have decided five records of each partition. No record is left, except for `undecided`.

    - `below`: it ends below what claims have decided
    - `grown`: it has grown beyond that again before a forwarder looks
    - `read`: a forwarder reads it meanwhile; `reading` is its error
    - `undecided`: it keeps the three records that claims have decided, and has lost two later ones
    """

    below: ForwardBench
    grown: ForwardBench
    read: ForwardBench
    undecided: ForwardBench
    reading: Future[str | None]


@pytest.fixture(scope="module")
def cut(frail: EmbeddedBroker) -> Iterator[Cut]:
    """The broker's only restart, for all of them."""
    below, grown, read, undecided = benches = [new_bench(frail) for _ in range(4)]
    for bench in benches:
        bench.open_lanes()
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(_error_of_forwarder, read, "north")
        with below.forwarder(), grown.forwarder(), undecided.forwarder():
            for bench in benches:
                bench.publish(3 if bench is undecided else 5)
            assert_eventually(lambda: undecided.decided(p0=3) and all(bench.decided(p0=5) for bench in benches[:3]), 30)
        size = _log_bytes(undecided)
        undecided.publish(2)
        _restart_cut(frail, {_log_file(below): 0, _log_file(grown): 0, _log_file(read): 0, _log_file(undecided): size})
        assert_eventually(lambda: all(map(_answers, benches)), 30, "the broker leads its partitions again")
        grown.publish(9)
        read.publish(9)
        # These take the place of the lost ones, and of more.
        undecided.publish(4)
        yield Cut(below, grown, read, undecided, reading)


def _log_bytes(bench: ForwardBench) -> int:
    """Return how long the log of the first input partition is."""
    return _log_file(bench).stat().st_size


def _restart_cut(broker: EmbeddedBroker, sizes: dict[Path, int]) -> None:
    """Let logs lose all bytes behind these sizes, as by a leader election that was not clean."""
    broker.stop()
    for log_file, size in sizes.items():
        os.truncate(log_file, size)
        for path in log_file.parent.iterdir():
            # The broker makes the files that it derives from the log again.
            if path.suffix in {".index", ".timeindex", ".snapshot"}:
                path.unlink()
    broker.start()


def _answers(bench: ForwardBench) -> bool:
    try:
        bench.messages()
        bench.claims()
    except KafkaException:
        return False
    return True


def _log_file(bench: ForwardBench) -> Path:
    (found,) = (bench.broker.directory / "data" / f"{bench.input}-0").glob("*.log")
    return found


def _error_of_forwarder(bench: ForwardBench, member: str) -> str | None:
    """Run a forwarder until it fails, and return its error; None if it runs on for too long."""
    deadline_s = time.monotonic() + 90 * PATIENCE
    try:
        ForwardProcess(bench.settings, member).run(lambda _: time.monotonic() > deadline_s)
    except CheckpointMismatch as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("below", id="it ends below what claims have decided"),
        pytest.param("grown", id="it has grown beyond that before a forwarder looks", marks=pytest.mark.thorough),
        pytest.param("read", id="a forwarder reads it meanwhile", marks=pytest.mark.thorough),
    ],
)
def test_a_cut_partition_ends_forwarders_and_batches_until_its_topic_is_created_again(cut: Cut, name: str) -> None:
    bench: ForwardBench = getattr(cut, name)
    error = cut.reading.result() if name == "read" else _error_of_forwarder(bench, "north")
    assert error is not None
    assert _CUT in error
    assert "Delete the topic, create it again, and start with topics.skip_expired=true" in error
    # Also once nothing of it can be seen in the topic.
    bench.publish(9)
    again = _error_of_forwarder(bench, "south")
    assert again is not None
    assert _CUT in again
    newest = bench.claims()[lane_of(bench.input, 0, LANES)][-1]
    assert newest.cut == {bench.input: {"0": 5}}
    known = {topic: [own] for topic, own in input_ids(bench.settings).items()}
    batch = BatchSpan(CheckpointOrigin("c", 1, 1), 0, ends={bench.input: {"0": 5}}, input_ids=known)
    with closing(ClaimWatch(bench.settings, LANES, 1, {}, known)) as watch:
        with pytest.raises(CheckpointMismatch, match=_CUT):
            watch.wait(batch)
        with pytest.raises(CheckpointMismatch, match=_CUT):
            watch.check_ends({}, known)
    assert bench.forwarded() == ids(bench.input, {0: range(5)})
    # The remedy.
    client = AdminClient({"bootstrap.servers": bench.broker.bootstrap})
    client.delete_topics([bench.input])[bench.input].result()
    assert_eventually(lambda: bench.input not in client.list_topics(timeout=10).topics)
    ensure_topics(bench.settings, 2)
    bench.write_terms(bench.terms())
    with bench.forwarder():
        bench.publish(2)
        assert_eventually(lambda: bench.decided(p0=2), 20)
    # A batch that was cut off meanwhile reads nothing of the topic when it is replayed.
    with closing(ClaimWatch(bench.settings, LANES, 1, {}, known)) as watch:
        assert watch.wait(replace(batch, starts=batch.ends)).offsets == {}


def test_a_partition_that_loses_only_what_no_claim_has_decided_is_read_on(cut: Cut) -> None:
    bench = cut.undecided
    with bench.forwarder():
        assert_eventually(lambda: bench.decided(p0=7), 20)
    assert bench.forwarded() == ids(bench.input, {0: range(7)})
    # A start of the job makes these checks.
    known = {topic: [own] for topic, own in input_ids(bench.settings).items()}
    with closing(ClaimWatch(bench.settings, LANES, 1, {}, known)) as watch:
        watch.check_ends({(bench.input, 0): 7, (bench.input, 1): 0}, known)
        with pytest.raises(CheckpointMismatch, match="/0 ends at offset 6, but claims have decided records up to 7"):
            watch.check_ends({(bench.input, 0): 6, (bench.input, 1): 0}, known)
