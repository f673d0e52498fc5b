"""Fixtures that several test folders share: a real broker, new topics, settings for them, and a new table."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from kafka.admin import KafkaAdminClient
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.java.command import java_command
from conf.load import load_settings
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.topics.topics import ensure_topics
from state.buckets.table_rows import STORED_SCHEMA
from streaming.local.broker import EmbeddedBroker
from streaming.spark.session import open_session
from tests.eventually import assert_eventually
from tests.frame_proxy import FrameProxy
from tests.quick_java import QUICK_JAVA, quick_broker
from tests.small_disk import CannotMount, SmallDisk
from tests.thorough import examples

# On a busy machine, an example may take long to generate and to run.
hypothesis_settings.register_profile(
    "any machine", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("any machine")

# A container often sets this. Then each process of each service would compile the project's code again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Many jobs run at once here, and each would want the same address. A test that asks its job gives it an address.
os.environ["DELAYLINE_MONITOR__JOB"] = ""

# A shell without job control starts background processes that ignore Ctrl-C, and their children inherit that. Handle
# Ctrl-C as in a terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.collection", "tests.strict_broker"]

MakeTopic = Callable[..., str]
Configure = Callable[..., None]
MakeSettings = Callable[..., Settings]
MakeDisk = Callable[[Path], SmallDisk]


@pytest.fixture(scope="session")
def java() -> str:
    """The path of Java, for tests that start it."""
    return java_command()


@pytest.fixture(scope="session")
def broker(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One broker for all tests; it ends with the test process, however that ends."""
    with quick_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def proxy() -> Iterator[FrameProxy]:
    """The proxy to which clients of `proxied` connect."""
    with FrameProxy() as proxy:
        yield proxy


@pytest.fixture(scope="session")
def proxied(java: str, tmp_path_factory: pytest.TempPathFactory, proxy: FrameProxy) -> Iterator[EmbeddedBroker]:
    """A broker that sends its clients to `proxy`."""
    own = {"advertised.listeners": f"PLAINTEXT://{proxy.address}"}
    folder = tmp_path_factory.mktemp("proxied")
    with quick_broker(folder, port=proxy.broker_port, properties=own, heap="512m") as running:
        yield running


@pytest.fixture(scope="session")
def admin(broker: EmbeddedBroker) -> Iterator[KafkaAdminClient]:
    """An admin client for `broker`."""
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as client:
        yield client


@pytest.fixture(scope="session")
def make_topic(admin: KafkaAdminClient) -> MakeTopic:
    """A function that creates a topic with a new name: `make_topic(2, **{"cleanup.policy": "compact"})`."""

    def make(partitions: int = 1, **configs: str) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        topic_spec = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
        admin.create_topics({name: topic_spec}, wait_for_metadata=True)
        return name

    return make


@pytest.fixture
def configure(broker: EmbeddedBroker) -> Configure:
    """A function that changes a topic's configuration: `configure(topic, **{"max.message.bytes": "5000"})`."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap})

    def change(topic: str, **configs: str) -> None:
        entries = [ConfigEntry(*config, incremental_operation=AlterConfigOpType.SET) for config in configs.items()]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        for future in client.incremental_alter_configs([resource]).values():
            future.result()

        def is_applied() -> bool:
            (described,) = client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
            return all(described.result()[name].value == value for name, value in configs.items())

        assert_eventually(is_applied)

    return change


@pytest.fixture(scope="session")
def spark(java: str) -> Iterator[SparkSession]:
    """A Spark session with the job's default settings, but what takes long.

    Queries are not compiled, and one task reads Delta's log.
    """
    quick = {
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    session = open_session(Settings(), quick)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def empty_table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an empty table, to be copied: to create one costs as much as a test that looks at it."""
    path = tmp_path_factory.mktemp("empty") / "buckets"
    BucketTable(spark, str(path)).create(from_arrow_schema(STORED_SCHEMA))
    return path


@pytest.fixture
def store(spark: SparkSession, empty_table: Path, tmp_path: Path) -> BucketTable:
    """An empty table of sealed buckets."""
    shutil.copytree(empty_table, tmp_path / "buckets")
    return BucketTable(spark, str(tmp_path / "buckets"))


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A new topic with one partition."""
    return make_topic()


@pytest.fixture
def make_settings(broker: EmbeddedBroker) -> MakeSettings:
    """A function that makes settings for `broker` with a new application id."""

    def make(*overrides: str) -> Settings:
        application_id = f"app-{uuid.uuid4().hex[:8]}"
        topics = [f"topics.{role}={application_id}-{role}" for role in ("input", "output", "dead_letter")]
        servers = f"kafka.bootstrap_servers={broker.bootstrap}"
        own = [f"application_id={application_id}", servers, *topics, "monitor.job="]
        return load_settings(None, [*own, *overrides], environ={})

    return make


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings for `broker` with all other defaults."""
    return make_settings()


@pytest.fixture
def prepared(make_settings: MakeSettings) -> Settings:
    """Settings of a new application with existing topics."""
    made = make_settings()
    ensure_topics(made, 1)
    return made


@pytest.fixture
def make_disk() -> Iterator[MakeDisk]:
    """A function that mounts a small disk at a path. It skips the test if mounting is not allowed."""
    made: list[SmallDisk] = []

    def make(path: Path) -> SmallDisk:
        try:
            made.append(SmallDisk(path))
        except CannotMount as problem:
            pytest.skip(f"a full disk needs a mount: {problem}")
        return made[-1]

    yield make
    for disk in reversed(made):
        disk.close()


@pytest.fixture
def small_disk(make_disk: MakeDisk, tmp_path: Path) -> SmallDisk:
    """An empty small disk."""
    return make_disk(tmp_path / "small")
