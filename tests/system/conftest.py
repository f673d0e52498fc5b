"""A service with new topics and storage, and a ledger of its input and output."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conf.load import load_settings
from sinks.topics.topics import ensure_topics
from streaming.local.broker import EmbeddedBroker
from streaming.storage.paths import local_checkpoint
from tests.quick_java import QUICK_JAVA
from tests.system import host_clock
from tests.system.host_clock import HostClock
from tests.system.ledger import Ledger
from tests.system.secured import Secured, secured_broker
from tests.system.service import Service
from tests.system.warm import WarmProcesses

MakeService = Callable[..., tuple[Service, Ledger]]


class Application:
    """The names of one test's application."""

    def __init__(self, broker: EmbeddedBroker, folder: Path) -> None:
        self.id = f"app-{uuid.uuid4().hex[:8]}"
        self.bootstrap = broker.bootstrap
        self.folder = folder
        # The folder of `storage.path`, or where the server keeps the files of that.
        self.storage = folder / "storage"
        self.input, self.output, self.other, self.dead = (
            f"{self.id}-{role}" for role in ("in", "out", "other", "dead")
        )

    @property
    def checkpoint(self) -> Path:
        """The folder of the job's current checkpoint."""
        return local_checkpoint(self.storage)

    def ledger(self) -> Ledger:
        """Return a ledger of the input and output, which is a context manager. The topics must exist."""
        outputs = [self.output, self.other, self.dead]
        results, claims, near = (f"{self.id}-{name}" for name in ("results", "claims", "near"))
        return Ledger(self.bootstrap, outputs, self.storage, results=results, claims=claims, near=near)

    def overrides(self, *more: str) -> list[str]:
        """Return settings for `--set`, with thresholds so low that every code path runs."""
        return [
            f"application_id={self.id}",
            f"kafka.bootstrap_servers={self.bootstrap}",
            f"topics.input={self.input}",
            f"topics.output={self.output}",
            f"topics.allowed_outputs={self.other}",
            f"topics.dead_letter={self.dead}",
            f"storage.path={self.storage}",
            # An idle batch every two seconds, not every half: tests wait for due times, and others need the two cores.
            "clock.trigger=2s",
            # Short, so that messages with short delays wait in the state and in buckets.
            "clock.horizon=2s",
            "bucket.max_messages=100",
            "bucket.fan_in=3",
            "release.transaction_messages=40",
            # A start after a kill waits this long for a heartbeat.
            "lease.period=4s",
            f"spark.spark.driver.extraJavaOptions={QUICK_JAVA}",
            # A service lives too briefly to gain by compiled queries. The demo's has them.
            "spark.spark.sql.codegen.wholeStage=false",
            "spark.spark.sql.codegen.factoryMode=NO_CODEGEN",
            *more,
        ]


@pytest.fixture(scope="module")
def secured(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker with a listener for each kind of login."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as secured:
        yield secured


@pytest.fixture
def application(broker: EmbeddedBroker, tmp_path: Path) -> Application:
    """The names of a new application."""
    return Application(broker, tmp_path)


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[HostClock]:
    """A clock for the job's host. It skips the test where libfaketime is not available."""
    if not host_clock.IS_AVAILABLE:
        pytest.skip("libfaketime comes for Linux on x86-64 only")
    clock = HostClock(tmp_path)
    yield clock
    clock.close()


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmProcesses]:
    """Processes in which a job has ended, and in which another one starts seconds faster."""
    processes = WarmProcesses()
    yield processes
    processes.close()


@pytest.fixture
def make_service(application: Application, warm: WarmProcesses) -> Iterator[MakeService]:
    """A function that makes a service, its ledger and its topics, with further `--set` overrides."""
    with ExitStack() as stack:

        def make(*overrides: str, partitions: int = 2) -> tuple[Service, Ledger]:
            overridden = application.overrides(*overrides)
            settings = load_settings(None, overridden, environ={})
            ensure_topics(settings, partitions=partitions)
            service = Service(application.folder, overridden, warm)
            ledger = stack.enter_context(application.ledger())
            ledger.horizon_ms = settings.clock.horizon
            ledger.written_ms = settings.release.lead + settings.release.slice
            # pytest shows it if the test fails.
            stack.callback(lambda: sys.stderr.write(service.log[-4000:]))
            # Registered last, so that it runs before the ledger's final check.
            stack.callback(service.kill)
            return service, ledger

        yield make
