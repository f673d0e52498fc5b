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
from streaming.demo.messages import LONGEST_MS, Publication
from streaming.demo.result import Outage, Result, result_of
from streaming.demo.view import View, take_snapshot
from streaming.judge.checkpoint_watch import CheckpointWatch
from streaming.judge.claims_watch import ClaimsWatch
from streaming.judge.contract import Environment
from streaming.judge.outputs import Outputs
from streaming.judge.record import Received
from streaming.judge.verdict import judge
from streaming.local.broker import EmbeddedBroker
from streaming.storage.paths import storage_path

# Messages and seconds of each wave: before the kill, while the job is down, after it is back.
_BEFORE, _DOWN, _AFTER = (500, 10.0), (200, 5.0), (299, 8.0)
# The waves, and one message at the start.
MESSAGES = 1 + _BEFORE[0] + _DOWN[0] + _AFTER[0]
_PARTITIONS = 3
_POLL_S = 0.1
# Far above the time needed even on a busy machine: a step that takes longer hangs.
_START_LIMIT_S = 180.0
_CATCH_UP_LIMIT_S = 120.0
_HORIZON_MS = 13_000
# No batch lasts longer, so that what is due so much before the end of the horizon is handed over.
_BATCH_MS = 8_000


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
        # Less than the longest delay, so that messages wait in buckets; more than a message may wait while the job is
        # down.
        f"clock.horizon={_HORIZON_MS}ms",
        "bucket.max_messages=60",
        "segment.max_messages=60",
        "bucket.fan_in=3",
        "window.ahead=8s",
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
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
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
        publication = Publication(settings, MESSAGES)
        stack.callback(publication.close)
        outage = _Scenario(view, job, settings, publication, outputs, received, watch).run()
        outputs.drain()
        watch.drain()
        environment = Environment({topic: {count} for topic, count in outputs.partitions.items()})
        acceptance = watch.acceptance()
        verdict = judge(publication.sent, received, acceptance, environment)
        return result_of(verdict, publication.sent, received, acceptance, outage)


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

    def run(self) -> Outage:
        """Run the steps until the job has stopped. Returns what was done to it."""
        view, job = self._view, self._job
        view.step("starting the job (delayline run)")
        job.start()
        with view.live():
            self._watch("starting", lambda: job.running, _START_LIMIT_S)
            view.step("publishing a plain message")
            self._publication.start(1, 0)
            self._watch("running", self._all_delivered, _CATCH_UP_LIMIT_S)
            view.step(f"publishing {_BEFORE[0]} messages, most of them with delays up to {LONGEST_MS // 1000} s")
            self._publication.start(*_BEFORE)
            self._watch("running", self._all_published, _CATCH_UP_LIMIT_S)
            view.step(f"killing the job's driver with SIGKILL; publishing {_DOWN[0]} more messages while it is down")
            job.kill_driver()
            killed_ms = _now_ms()
            self._publication.start(*_DOWN)
            job.start()
            self._watch("restarting", lambda: job.running, _START_LIMIT_S)
            self._watch("catching up", self._all_accepted, _CATCH_UP_LIMIT_S)
            back_ms = _now_ms()
            outage_s = (back_ms - killed_ms) / 1000
            view.step(f"the job has read all of them {outage_s:.1f} s after the kill; publishing {_AFTER[0]} more")
            self._publication.start(*_AFTER)
            self._watch("running", self._all_published, _CATCH_UP_LIMIT_S)
            view.step("killing a release process with SIGKILL; the job starts another")
            job.kill_release()
            release_killed_ms = _now_ms()
            self._watch("running", self._all_delivered, LONGEST_MS / 1000 + _CATCH_UP_LIMIT_S, must_succeed=False)
            view.step("stopping the job (SIGTERM)")
            job.stop()
        return Outage(killed_ms, back_ms, killed_ms + _HORIZON_MS - _BATCH_MS, release_killed_ms)

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

    def _all_accepted(self) -> bool:
        acceptance = self._accepted.acceptance()
        return self._publication.done and all(map(acceptance.is_accepted, list(self._publication.sent.values())))


def _outputs(settings: Settings) -> list[str]:
    return [settings.topics.output, *settings.topics.allowed_outputs, settings.topics.dead_letter]


@contextmanager
def _scratch() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="delayline-demo-", ignore_cleanup_errors=True) as folder:
        yield folder


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
