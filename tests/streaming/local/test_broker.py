"""The embedded broker, as a real process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.admin import KafkaAdminClient

from conf.errors import BrokerFailed
from streaming.local.broker import EmbeddedBroker
from streaming.local.broker_properties import address, node_properties, properties_text
from tests.eventually import assert_eventually
from tests.processes import runs
from tests.quick_java import quick_broker


def produce(broker: EmbeddedBroker, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    producer.produce(topic, value, partition=0)
    assert producer.flush(10) == 0


def first_values(broker: EmbeddedBroker, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "test"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(count, 10)]
    finally:
        consumer.close()


@pytest.mark.thorough
@pytest.mark.usefixtures("java")
def test_acknowledged_records_survive_a_stop_and_a_kill(tmp_path: Path) -> None:
    # After a kill, the controller (in the same process) considers the node alive until this time has passed.
    short_session = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}
    broker = quick_broker(tmp_path, properties=short_session)
    broker.start()
    try:
        address_at_first = broker.bootstrap
        with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
            # The broker's first answer means that it serves: the client need not retry or wait.
            admin.create_topics({"kept": {"num_partitions": 1, "replication_factor": 1}})
            admin.wait_for_topics(["kept"])
        produce(broker, "kept", b"before stop")
        broker.stop()
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        assert broker.pid is None
        broker.start()
        produce(broker, "kept", b"before kill")
        broker.kill()
        assert broker.pid is None
        broker.start()
        assert broker.bootstrap == address_at_first
        assert first_values(broker, "kept", 2) == [b"before stop", b"before kill"]
        with pytest.raises(BrokerFailed, match="is already running"):
            broker.start()
    finally:
        broker.kill()


def test_a_metadata_request_creates_no_topic(broker: EmbeddedBroker, admin: KafkaAdminClient) -> None:
    Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "x", "allow.auto.create.topics": "true"}).list_topics(
        "typing-error", 5
    )
    assert "typing-error" not in admin.list_topics()


def test_the_broker_writes_a_log(broker: EmbeddedBroker) -> None:
    assert "Kafka Server started" in broker.log_file.read_text()
    broker.check()


@pytest.mark.usefixtures("java")
def test_an_unreadable_property_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match=r"could not format[\s\S]*log\.segment\.bytes"):
        quick_broker(tmp_path, properties={"log.segment.bytes": "many"}).start()


@pytest.mark.usefixtures("java")
def test_a_taken_port_fails_with_the_end_of_the_log(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        broker = quick_broker(tmp_path, port=taken.getsockname()[1])
        with pytest.raises(BrokerFailed, match=r"ended with exit code 1[\s\S]*Address already in use"):
            broker.start()
    assert broker.pid is None


@pytest.mark.usefixtures("java")
def test_a_broker_that_does_not_serve_in_time_is_ended(tmp_path: Path) -> None:
    broker = quick_broker(tmp_path)
    with pytest.raises(BrokerFailed, match="does not answer at"):
        broker.start(timeout_s=0)
    assert broker.pid is None


@pytest.mark.usefixtures("java")
def test_the_broker_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from tests.quick_java import quick_broker\n"
        "broker = quick_broker(pathlib.Path(sys.argv[1])).start(); print(broker.pid, flush=True); input()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
    )
    assert parent.stdout is not None
    node = psutil.Process(int(parent.stdout.readline()))
    assert node.is_running()
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    assert_eventually(lambda: not runs(node), what="its death")


def test_properties_are_written_as_java_reads_them() -> None:
    text = properties_text({"a b:c": " padded", "path": "C:\\é", "lines": "1\n2"})
    assert text == "a\\ b\\:c=\\ padded\npath=C:\\\\\\u00e9\nlines=1\\n2\n"


def test_an_ipv6_address_is_bracketed() -> None:
    assert address("::1", 9092) == "[::1]:9092"
    properties = node_properties(Path("/data"), address("::1", 1), address("::1", 2))
    assert properties["listeners"] == "PLAINTEXT://[::1]:1,CONTROLLER://[::1]:2"


def test_a_secured_listener_is_added_to_the_plain_one() -> None:
    properties = node_properties(Path("/data"), "h:1", "h:2", {"SASL_SSL": "h:3"})
    assert properties["listeners"] == "PLAINTEXT://h:1,SASL_SSL://h:3,CONTROLLER://h:2"
    assert properties["advertised.listeners"] == "PLAINTEXT://h:1,SASL_SSL://h:3"
    protocols = properties["listener.security.protocol.map"].split(",")
    assert sorted(protocols) == ["CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT", "SASL_SSL:SASL_SSL"]
