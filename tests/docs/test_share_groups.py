"""The statements of docs/subscribe.md about share groups, with Kafka's own share consumer."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conf.java.jars.installed import broker_jars
from streaming.local.broker import EmbeddedBroker
from tests.quick_java import quick_broker

_PROGRAM = Path(__file__).parent / "ShareReader.java"


@pytest.fixture
def broker(java: str, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker of its own: share groups are a feature of the cluster, which the first reader switches on."""
    with quick_broker(tmp_path / "broker", heap="512m") as running:
        yield running


@pytest.mark.thorough
def test_a_share_group_reads_ahead_of_time_unless_its_isolation_level_is_read_committed(
    java: str, broker: EmbeddedBroker
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("out", 1)])["out"].result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "release"})
    producer.init_transactions(30)
    with ExitStack() as readers:

        def reader(group: str, *configs: str) -> subprocess.Popen[str]:
            command = [java, "-Xmx256m", "-Dlog4j2.level=OFF", "-cp", f"{broker_jars()[0].parent}/*", str(_PROGRAM)]
            command += [broker.bootstrap, "out", group, *configs]
            process = readers.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            readers.callback(process.kill)
            return process

        def write(value: str) -> None:
            producer.begin_transaction()
            producer.produce("out", value)
            assert producer.flush(30) == 0

        write("first")
        producer.commit_transaction(30)
        write("before it is due")
        by_default = reader("default")
        assert by_default.stdout is not None
        assert [by_default.stdout.readline() for _ in range(2)] == ["first\n", "before it is due\n"], "while it is open"
        committed = reader("committed", "share.isolation.level=read_committed")
        assert committed.stdout is not None
        assert committed.stdout.readline() == "first\n"
        producer.abort_transaction(30)
        write("last")
        producer.commit_transaction(30)
        assert by_default.communicate()[0] == "last\n"
        assert committed.communicate()[0] == "last\n", "what is aborted is read by nobody"
