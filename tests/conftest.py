"""What several folders of tests share: a real broker, topics of their own, settings that point there."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from kafka.admin import KafkaAdminClient
from pyspark.sql import SparkSession

from conf.java.jars import java_command
from conf.load import load_settings
from conf.settings import Settings
from streaming.local.broker import EmbeddedBroker
from streaming.spark.session import open_session
from tests.eventually import assert_eventually
from tests.quick_java import QUICK_JAVA
from tests.small_disk import CannotMount, SmallDisk

# How long an example takes, or its making, is the machine's affair.
hypothesis_settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("any machine")

# As in a terminal: what a shell without job control starts in the background ignores Ctrl-C, and so does what that
# starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.collection"]

MakeTopic = Callable[..., str]
Configure = Callable[..., None]
MakeSettings = Callable[..., Settings]
MakeDisk = Callable[[Path], SmallDisk]


@pytest.fixture(scope="session")
def java() -> str:
    """The path of Java, for what starts it."""
    return java_command()


@pytest.fixture(scope="session")
def broker(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One broker for all tests; it ends with the test process, however that ends."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def admin(broker: EmbeddedBroker) -> Iterator[KafkaAdminClient]:
    """An admin client for `broker`."""
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as client:
        yield client


@pytest.fixture(scope="session")
def make_topic(admin: KafkaAdminClient) -> MakeTopic:
    """A function that makes a topic of a new name: `make_topic(2, **{"cleanup.policy": "compact"})`."""

    def make(partitions: int = 1, **configs: str) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        form = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
        admin.create_topics({name: form}, wait_for_metadata=True)
        return name

    return make


@pytest.fixture
def configure(broker: EmbeddedBroker) -> Configure:
    """A function that changes a topic's configuration: `configure(topic, **{"max.message.bytes": "5000"})`."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap})

    def change(topic: str, **configs: str) -> None:
        entries = [ConfigEntry(*config, incremental_operation=AlterConfigOpType.SET) for config in configs.items()]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        for done in client.incremental_alter_configs([resource]).values():
            done.result()

        def shown() -> bool:
            (described,) = client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
            return all(described.result()[name].value == value for name, value in configs.items())

        assert_eventually(shown)

    return change


@pytest.fixture(scope="session")
def spark(java: str) -> Iterator[SparkSession]:
    """The session that the job runs in, at its defaults, for the tests of a part that needs one."""
    session = open_session(Settings(), {"spark.driver.extraJavaOptions": QUICK_JAVA})
    yield session
    session.stop()


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A topic of the test's own, with one partition."""
    return make_topic()


@pytest.fixture
def make_settings(broker: EmbeddedBroker) -> MakeSettings:
    """A function that makes settings for `broker`, under an application id of the test's own."""

    def make(*overrides: str) -> Settings:
        own = f"app-{uuid.uuid4().hex[:8]}"
        topics = [f"topics.{role}={own}-{role}" for role in ("input", "output", "dead_letter")]
        servers = f"kafka.bootstrap_servers={broker.bootstrap}"
        return load_settings(None, [f"application_id={own}", servers, *topics, *overrides], environ={})

    return make


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings for `broker` with nothing else set."""
    return make_settings()


@pytest.fixture
def make_disk() -> Iterator[MakeDisk]:
    """A function that mounts a small disk at a path; it skips the test where nothing may be mounted."""
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
    """A small disk, empty."""
    return make_disk(tmp_path / "small")
