"""The demo: broker, job, about a thousand messages, a SIGKILL in the middle, and the count at the end."""

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
from streaming.demo.view import View, glance
from streaming.judge.checkpoint_watch import CheckpointWatch
from streaming.judge.contract import Environment
from streaming.judge.outputs import Outputs
from streaming.judge.record import Received
from streaming.judge.verdict import judge
from streaming.local.broker import EmbeddedBroker
from streaming.storage.paths import checkpoint_path

# Messages and seconds of each wave: before the kill, while the job is down, after it is back.
_BEFORE, _DOWN, _AFTER = (500, 10.0), (200, 5.0), (299, 8.0)
# And one message at the start, to see the job at work.
MESSAGES = 1 + _BEFORE[0] + _DOWN[0] + _AFTER[0]
_PARTITIONS = 3
_POLL_S = 0.1
# Far above what is needed even on a machine that is busy otherwise: what takes longer hangs.
_START_LIMIT_S = 180.0
_CATCH_UP_LIMIT_S = 120.0
_ON_THE_WAY_MS = 1_000


def demo_overrides(bootstrap: str, folder: Path) -> list[str]:
    """Return the job's settings as `--set` takes them. Thresholds are low, so that a thousand messages seal."""
    return [
        "application_id=demo",
        f"kafka.bootstrap_servers={bootstrap}",
        "topics.input=demo-in",
        "topics.output=demo-out",
        "topics.allowed_outputs=demo-reminders",
        "topics.dead_letter=demo-dead-letter",
        f"storage.path={folder / 'storage'}",
        "bucket.max_messages=200",
        "segment.max_messages=60",
        "segment.max_seconds=5",
        "window.ahead=8s",
        # A killed JVM leaves its unpacked libraries where its temporary files are.
        f"spark.spark.driver.extraJavaOptions=-Djava.io.tmpdir={folder / 'tmp'}",
    ]


def run_demo(view: View, keep: Path | None = None) -> Result:
    """Run it all, and return what the judge says. Everything is in `keep`, or in a folder that goes with the demo.

    Nothing is left running, however this ends. Raises BrokerFailed, JarsMissing, JavaMissing; QueryFailed with
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
        watch = stack.enter_context(CheckpointWatch(Path(checkpoint_path(settings))))
        received: list[Received] = []
        outputs = Outputs(broker.bootstrap, _outputs(settings), received.append)
        stack.callback(outputs.close)
        publication = Publication(settings, MESSAGES)
        stack.callback(publication.close)
        outage = _Scenario(view, job, settings, publication, outputs, received).run()
        outputs.drain()
        environment = Environment({topic: {count} for topic, count in outputs.partitions.items()})
        verdict = judge(publication.sent, received, watch.acceptance(), environment)
        return result_of(verdict, publication.sent, received, outage)


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
    ) -> None:
        self._view = view
        self._job = job
        self._publication = publication
        self._outputs = outputs
        self._received = received
        self._dead_letter = settings.topics.dead_letter

    def run(self) -> Outage:
        """Go through them, to the end of the job. Returns the outage that the kill made."""
        view, job = self._view, self._job
        view.step("starting the job (delayline run)")
        job.start()
        with view.live():
            self._watch("starting", lambda: job.running, _START_LIMIT_S)
            view.step("publishing a plain message")
            self._publication.start(1, 0)
            self._watch("running", self._all_out, _CATCH_UP_LIMIT_S)
            view.step(f"publishing {_BEFORE[0]} messages, most of them due 1 to {LONGEST_MS // 1000} s later")
            self._publication.start(*_BEFORE)
            self._watch("running", self._all_published, _CATCH_UP_LIMIT_S)
            view.step(f"killing the job with SIGKILL; {_DOWN[0]} more messages while it is down")
            job.kill()
            killed_ms = _now_ms()
            self._publication.start(*_DOWN)
            job.start()
            self._watch("restarting", lambda: job.running, _START_LIMIT_S)
            self._watch("catching up", lambda: self._first_after(killed_ms) is not None, _CATCH_UP_LIMIT_S)
            back_ms = self._first_after(killed_ms) or _now_ms()
            view.step(f"first delivery {(back_ms - killed_ms) / 1000:.1f} s after the kill; {_AFTER[0]} more messages")
            self._watch("running", self._all_published, _CATCH_UP_LIMIT_S)
            self._publication.start(*_AFTER)
            self._watch("running", self._all_out, LONGEST_MS / 1000 + _CATCH_UP_LIMIT_S, or_else=True)
            view.step("stopping the job (SIGTERM)")
            job.stop()
        return Outage(killed_ms, back_ms)

    def _watch(self, job: str, until: Callable[[], bool], limit_s: float, or_else: bool = False) -> None:
        """Show what happens until `until()`; with `or_else`, at the limit too: the judge says what is missing."""
        deadline_s = time.monotonic() + limit_s
        while not until():
            if time.monotonic() > deadline_s:
                if or_else:
                    return
                raise QueryFailed(f"{job}: took over {limit_s:.0f} s; the end of the job's log:\n{self._job.log_end()}")
            self._outputs.check()
            # Looks after the job on the way: it raises once the job has ended.
            _ = self._job.running
            self._view.show(job, lambda: glance(self._publication, self._received, self._dead_letter))
            time.sleep(_POLL_S)

    def _all_published(self) -> bool:
        return self._publication.done

    def _all_out(self) -> bool:
        return self._publication.done and self._outputs.ids >= self._publication.sent.keys()

    def _first_after(self, killed_ms: int) -> int | None:
        """When the first record came after the kill, epoch ms; one committed before it comes within a second."""
        times = (record.received_ms for record in list(self._received))
        return min((ms for ms in times if ms > killed_ms + _ON_THE_WAY_MS), default=None)


def _outputs(settings: Settings) -> list[str]:
    return [settings.topics.output, *settings.topics.allowed_outputs, settings.topics.dead_letter]


@contextmanager
def _scratch() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="delayline-demo-", ignore_cleanup_errors=True) as folder:
        yield folder


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
