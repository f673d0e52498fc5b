"""The steps of the demo.

1. Start a broker and the job, and publish one message to see that the job works.
2. Publish a first wave of messages, and kill the job with SIGKILL.
3. Publish a second wave while the job is down, and start the job again.
4. Publish a third wave, wait until everything is delivered, and stop the job.
5. Judge the records of the output topics.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from conf.errors import QueryFailed
from conf.load import load_settings
from conf.settings import Settings
from sinks.topics.topics import ensure_topics
from streaming.demo.job import Job
from streaming.demo.messages import FAR_MS, Publication
from streaming.demo.result import Result, result_of
from streaming.demo.view import View, take_snapshot
from streaming.judge.checkpoint_watch import CheckpointWatch
from streaming.judge.claims_watch import ClaimsWatch
from streaming.judge.contract import Environment
from streaming.judge.outputs import Outputs
from streaming.judge.record import Received
from streaming.judge.verdict import judge
from streaming.local.broker import SHORT_LIVED, EmbeddedBroker
from streaming.storage.paths import storage_path

# Messages and seconds of each wave: before the kill, while the job is down, after it is back.
_BEFORE, _DOWN, _AFTER = (500, 10.0), (200, 5.0), (299, 8.0)
# The waves, and one message at the start. Far messages are in the first wave.
_FAR = 1 + _BEFORE[0]
MESSAGES = _FAR + _DOWN[0] + _AFTER[0]
_PARTITIONS = 3
_POLL_S = 0.1
# Far above the time needed even on a busy machine: a step that takes longer hangs.
_START_LIMIT_S = 180.0
_CATCH_UP_LIMIT_S = 120.0


def demo_overrides(bootstrap: str, folder: Path) -> list[str]:
    """Return the job's settings as values of `--set`. Low thresholds let the job seal although messages are few."""
    return [
        "application_id=demo",
        f"kafka.bootstrap_servers={bootstrap}",
        "topics.input=demo-in",
        "topics.output=demo-out",
        "topics.allowed_outputs=demo-reminders",
        "topics.dead_letter=demo-dead-letter",
        f"storage.path={folder / 'storage'}",
        # Less than the delays of far messages, so that these wait in buckets; more than the job is down.
        "clock.horizon=40s",
        "bucket.max_messages=10",
        "bucket.fan_in=3",
        # A killed JVM leaves unpacked libraries in its folder for temporary files.
        f"spark.spark.driver.extraJavaOptions=-Djava.io.tmpdir={folder / 'tmp'}",
    ]


def run_demo(view: View, keep: Path | None = None) -> Result:
    """Run the demo and return its result. Logs and data are in `keep`, or in a temporary folder.

    Stops the broker and the job, even after an error. Raises BrokerFailed, JarsMissing, JavaMissing; QueryFailed with
    the end of the job's log.
    """
    with ExitStack() as stack:
        folder = (keep or Path(stack.enter_context(_scratch()))).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        view.step(f"starting a Kafka broker in {folder}")
        broker = stack.enter_context(EmbeddedBroker(folder / "broker", java=SHORT_LIVED))
        overrides = demo_overrides(broker.bootstrap, folder)
        settings = load_settings(None, overrides, environ={})
        ensure_topics(settings, partitions=_PARTITIONS)
        job = Job(folder, overrides)
        stack.callback(job.kill)
        claims = ClaimsWatch(broker.bootstrap, settings.claims_topic, settings.near_topic)
        watch = stack.enter_context(CheckpointWatch(Path(storage_path(settings)), claims))
        received: list[Received] = []
        outputs = Outputs(broker.bootstrap, _outputs(settings), received.append)
        stack.callback(outputs.close)
        publication = Publication(settings, MESSAGES, _FAR)
        stack.callback(publication.close)
        release_killed_ms = _Scenario(view, job, settings, publication, outputs, received, watch).run()
        outputs.drain()
        watch.drain()
        environment = Environment({topic: {count} for topic, count in outputs.partitions.items()})
        verdict = judge(publication.sent, received, watch.acceptance(), environment)
        return result_of(verdict, publication.sent, received, release_killed_ms)


class _Scenario:
    """The demo's steps, in order."""

    def __init__(
        self,
        view: View,
        job: Job,
        settings: Settings,
        publication: Publication,
        outputs: Outputs,
        received: list[Received],
        watch: CheckpointWatch,
    ) -> None:
        self._view = view
        self._job = job
        self._publication = publication
        self._outputs = outputs
        self._received = received
        self._accepted = watch
        self._dead_letter = settings.topics.dead_letter

    def run(self) -> int:
        """Run the steps until the job has stopped. Returns when a release process was killed (epoch ms)."""
        view, job = self._view, self._job
        view.step("starting the job (delayline run)")
        job.start()
        with view.live():
            self._watch("starting", lambda: job.running, _START_LIMIT_S)
            view.step("publishing a plain message")
            self._publication.start(1, 0)
            self._watch("running", self._all_delivered, _CATCH_UP_LIMIT_S)
            view.step(f"publishing {_BEFORE[0]} messages, most of them with delays up to {FAR_MS[1] // 1000} s")
            self._publication.start(*_BEFORE)
            self._watch("running", self._all_published, _CATCH_UP_LIMIT_S)
            view.step(f"killing the job's driver with SIGKILL; publishing {_DOWN[0]} more messages while it is down")
            job.kill_driver()
            killed_s = time.monotonic()
            self._publication.start(*_DOWN)
            job.start()
            self._watch("restarting", lambda: job.running, _START_LIMIT_S)
            self._watch("catching up", self._all_read, _CATCH_UP_LIMIT_S)
            outage_s = time.monotonic() - killed_s
            view.step(f"the job has read all of them {outage_s:.1f} s after the kill; publishing {_AFTER[0]} more")
            self._publication.start(*_AFTER)
            self._watch("running", self._all_published, _CATCH_UP_LIMIT_S)
            view.step("killing a release process with SIGKILL; the job starts another")
            job.kill_release()
            release_killed_ms = time.time_ns() // 1_000_000
            self._watch("running", self._all_delivered, FAR_MS[1] / 1000 + _CATCH_UP_LIMIT_S, must_succeed=False)
            view.step("stopping the job (SIGTERM)")
            job.stop()
        return release_killed_ms

    def _watch(self, job: str, until: Callable[[], bool], limit_s: float, must_succeed: bool = True) -> None:
        """Show the progress until `until()` is true. `job` is the state of the job to show.

        Raises QueryFailed after `limit_s`; without `must_succeed` it returns, and the judge reports what is missing.
        """
        deadline_s = time.monotonic() + limit_s
        while not until():
            if time.monotonic() > deadline_s:
                if not must_succeed:
                    return
                raise QueryFailed(f"{job}: took over {limit_s:.0f} s; the end of the job's log:\n{self._job.log_end()}")
            self._outputs.check()
            # Raises if the job has ended.
            _ = self._job.running
            self._view.show(job, lambda: take_snapshot(self._publication, self._received, self._dead_letter))
            time.sleep(_POLL_S)

    def _all_published(self) -> bool:
        return self._publication.done

    def _all_delivered(self) -> bool:
        return self._publication.done and self._outputs.ids >= self._publication.sent.keys()

    def _all_read(self) -> bool:
        acceptance = self._accepted.acceptance()
        sent = list(self._publication.sent.values())
        return self._publication.done and all(acceptance.committed_ms(message) is not None for message in sent)


def _outputs(settings: Settings) -> list[str]:
    return [settings.topics.output, *settings.topics.allowed_outputs, settings.topics.dead_letter]


@contextmanager
def _scratch() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="delayline-demo-", ignore_cleanup_errors=True) as folder:
        yield folder
