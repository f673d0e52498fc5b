"""Schedules: 100,000 messages that repeat every minute, compared with plain messages at the same rate.

One job first goes through a load of plain messages that wait a minute each, and then through the schedules. After
that, waiting plain messages are cancelled for a while, and then schedules at the same rate. Cancels before would hide
whether a job holds more and more: the ids of cancelled messages stay until these would have been due.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.aims import LATENESS_MS, Figures, fault_aims, figure, held_aim, ratio
from benchmarks.cancels import ask
from benchmarks.footprint import delta_tables, live_files, used_bytes
from benchmarks.held_order import faults_of
from benchmarks.job import Application, Job
from benchmarks.load import Header, Load, Publisher, instant, key_of, value_of
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import lateness_figure
from benchmarks.receiver import Received, Receiver
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.traffic import Traffic, curve, due_between, percentiles, run_through
from benchmarks.usage import job_total
from benchmarks.waiting import say
from benchmarks.watch import Watch
from state.repeats.schedule import REPEAT_HEADER
from streaming.judge.acceptance import Acceptance
from streaming.judge.outputs import Outputs
from streaming.judge.record import Received as Record
from streaming.judge.schedules import Repeated, last_numbers, schedule_problems

PER_S, INTERVAL_S, MINUTES, LEAST_MINUTES = 1_667, 60, 4, 2
# Forwarders do not take these, as they do not take messages that repeat.
SHORTEST_S, LONGEST_S, WARM_UP_S, LOAD_S = 61.0, 71.0, 75.0, 60.0
PLAIN, REPEATING = "plain messages", "schedules"
PLAIN_CANCELS, CANCELS = "cancels of plain messages", "cancels of schedules"
CANCELS_PER_S, CANCELS_S = 100, 60.0
# The most growth from the first third of the time to the last.
MOST_GROWTH = 1.1
_HELD = {"table_mb": "mean", "files": "mean", "memory_mb": "most", "batch_steps_s": "median"}
_STATISTICS: dict[str, Callable[[Sequence[float]], Any]] = {"mean": np.mean, "most": max, "median": np.median}
_DUE_IN_S, _DRAIN_S, _SAMPLE_S = 48 * 3600, 60.0, 5.0
_EVERY: Header = (REPEAT_HEADER, b"every %ds" % INTERVAL_S)

# When something was measured, epoch s, and its value.
Samples = list[tuple[float, float]]


def measure(stand: Stand, scale: float, minutes: int = MINUTES) -> Outcome:
    """Send plain messages through a job, then the occurrences of schedules, and measure these for some `minutes`."""
    per_s, minutes = max(10, int(PER_S * scale)), max(LEAST_MINUTES, round(minutes * scale))
    inputs = [f"schedules-{of}-in" for of in ("repeating", "ended", "far")]
    outputs = [stand.topic(f"schedules-{of}") for of in ("repeating", "ended")]
    application = stand.application(
        "schedules",
        f"topics.input=schedules-in,{','.join(inputs)}",
        f"topics.allowed_outputs={','.join(outputs)}",
        *(f"policies.{topic}.repeats=true" for topic in inputs[:2]),
    )
    job = stand.job(application)
    traffic = Traffic(per_s, SHORTEST_S, LONGEST_S, WARM_UP_S, max(15.0, LOAD_S * scale))
    plain_ms, plain = run_through(stand, application, job, traffic)
    repeating_ms, figures = _through_schedules(stand, application, job, per_s, minutes, inputs, outputs)
    job.stop()
    figures = {PLAIN: plain} | figures
    series = {PLAIN: curve(plain_ms), REPEATING: curve(repeating_ms)}
    about = f"{per_s * INTERVAL_S:,} schedules of {INTERVAL_S} s for {minutes} minutes"
    return Outcome("schedules", about, aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: occurrences come like other messages, nothing grows, and cancels are answered as fast."""

    def of_plain(name: str) -> float | None:
        return ratio(figure(figures, REPEATING, name), figure(figures, PLAIN, name))

    cancelled = ratio(figure(figures, CANCELS, "cancelled"), figure(figures, CANCELS, "asked"))
    plain_answer_ms = figure(figures, PLAIN_CANCELS, "answer_p50_ms")
    return [
        Aim("lateness p50, of that of plain messages", of_plain("p50_ms"), 1.3),
        Aim("lateness p99, of that of plain messages", of_plain("p99_ms"), 1.3),
        *(
            Aim(
                f"{name} of the last third, of that of the first",
                ratio(figure(figures, REPEATING, f"{name}_last"), figure(figures, REPEATING, f"{name}_first")),
                MOST_GROWTH,
            )
            for name in _HELD
        ),
        Aim("cancelled of the asked schedules", cancelled, 1.0, at_least=True),
        Aim(
            "time to the answer p50, of that about plain messages",
            ratio(figure(figures, CANCELS, "answer_p50_ms"), plain_answer_ms),
            1.3,
        ),
        Aim("wrong occurrences and answers of cancelled schedules", figure(figures, CANCELS, "wrong"), 0),
        *(aim for case in (PLAIN, REPEATING) for aim in (held_aim(figures, case), *fault_aims(figures, case))),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the lateness in both cases."""
    return lateness_figure(outcome, LATENESS_MS["p99"])


def occurrences_in(received: Received, schedules: int, of_each: int) -> Received:
    """Return the first `of_each` occurrences of each schedule, numbered through.

    The value has the schedule's number, below `schedules`, and when its first occurrence is due. Each occurrence gets a
    number of its own, and its due time by the rule.
    """
    interval_us = INTERVAL_S * 1_000_000
    turn = (received["header_ms"] * 1000 - received["due_us"]) // interval_us
    due_us, number = received["due_us"] + turn * interval_us, turn * schedules + received["number"]
    numbered = Received(received.columns | {"due_us": due_us, "number": number})
    return numbered.where(turn < of_each)


def growth(samples: dict[str, Samples], start_s: float, end_s: float) -> dict[str, float]:
    """Return the resources held in the first and in the last third of [start_s, end_s) epoch s, by name and third."""
    third_s = (end_s - start_s) / 3
    figures = {}
    for name, statistic in _HELD.items():
        for third, from_s in (("first", start_s), ("last", end_s - third_s)):
            held = [value for at_s, value in samples[name] if from_s <= at_s < from_s + third_s]
            if held:
                figures[f"{name}_{third}"] = round(float(_STATISTICS[statistic](held)), 3)
    return figures


def _through_schedules(
    stand: Stand,
    application: Application,
    job: Job,
    per_s: int,
    minutes: int,
    inputs: list[str],
    outputs: list[str],
) -> tuple[npt.NDArray[np.float64], dict[str, dict[str, Any]]]:
    repeating_in, ended_in, far_in = inputs
    count, of_each, measured_s = per_s * INTERVAL_S, minutes + 1, minutes * 60
    say(f"{application.name}: {count:,} schedules, {of_each} occurrences of each")
    cancels_s = min(CANCELS_S, measured_s / 6)
    asked = int(CANCELS_PER_S * cancels_s)
    ended = _publish_ended(stand, ended_in, outputs[1], asked)
    _publish_far(stand, far_in, asked)
    out = stand.folder / "occurrences.npz"
    limit_s = 3 * INTERVAL_S + measured_s + _DRAIN_S
    receiver = Receiver(stand.bootstrap, outputs[:1], PARTITIONS, count * of_each, limit_s, out)
    with stand.judge_watch(application) as watch, receiver, _TableWatch(application.folder) as table:
        begun_s = time.time()
        # Each comes for the first time while others are published; that minute does not count.
        start_s, end_s = begun_s + 2 * INTERVAL_S, begun_s + 2 * INTERVAL_S + measured_s
        publisher = Publisher(stand.bootstrap, repeating_in, PARTITIONS)
        publisher.pace(per_s, INTERVAL_S, lambda _, now_s: (_first_us(now_s), [_EVERY, _to(outputs[0])]))
        publisher.close()
        figures: dict[str, dict[str, Any]] = {}
        time.sleep(max(0.0, end_s - time.time()))
        for case, topic in ((PLAIN_CANCELS, far_in), (CANCELS, ended_in)):
            asker = ask(stand, application, asked, CANCELS_PER_S, cancels_s, topic)
            printed, _ = asker.communicate(timeout=300)
            figures[case] = json.loads(printed)
        until_ms = int(time.time() * 1000)
        received = occurrences_in(receiver.result(), count, of_each)
        watch.drain()
        acceptance = watch.acceptance()
    problems = _problems(stand, application, outputs[1], ended, acceptance, until_ms)
    for problem in problems[:5]:
        say(problem)
    figures[CANCELS]["wrong"] = len(problems)
    lateness_ms = due_between(received, start_s, end_s).lateness_ms
    samples = table.samples | {
        "memory_mb": [(each.at_s, job_total(each.pss) / 2**20) for each in job.usage.memory_between(start_s, end_s)],
        "batch_steps_s": [(line.done_s, line.steps_s) for line in job.batch_lines().values()],
    }
    figures[REPEATING] = {
        "published": count,
        "messages": len(lateness_ms),
        **percentiles(lateness_ms),
        **faults_of(received, count * of_each, 0, repeating_in, acceptance),
        **growth(samples, start_s, end_s),
        "disk_mb": round(used_bytes(application.folder) / 2**20, 1),
        **job.triggers(start_s, end_s),
        **job.usage.between(start_s, end_s),
    }
    return lateness_ms, figures


def _first_us(now_s: float) -> int:
    return (int(now_s * 1000) + INTERVAL_S * 1000) * 1000


def _to(output: str) -> Header:
    return "deliver-to", output.encode()


def _publish_ended(stand: Stand, topic: str, output: str, count: int) -> dict[str, Repeated]:
    """Publish the schedules that are cancelled later, and return them by id."""
    publisher = Publisher(stand.bootstrap, topic, PARTITIONS)
    stamp_ms = time.time_ns() // 1_000_000
    found = {}
    for number in range(count):
        load = Load(number, stamp_ms + INTERVAL_S * 1000, stamp_ms)
        publisher.publish(load, [_EVERY, _to(output)])
        identity = f"{topic}/{number % PARTITIONS}/{number // PARTITIONS}"
        content = (key_of(number), value_of(number, load.due_ms * 1000), (_to(output),))
        found[identity] = Repeated(identity, load.due_ms, *content, output, every_ms=INTERVAL_S * 1000)
    publisher.flush()
    publisher.close()
    return found


def _publish_far(stand: Stand, topic: str, count: int) -> None:
    """Publish plain messages that wait for days."""
    stamp_ms = time.time_ns() // 1_000_000
    publisher = Publisher(stand.bootstrap, topic, PARTITIONS)
    publisher.preload((Load(number, stamp_ms + _DUE_IN_S * 1000, stamp_ms) for number in range(count)), instant)
    publisher.close()


def _problems(
    stand: Stand,
    application: Application,
    output: str,
    ended: dict[str, Repeated],
    acceptance: Acceptance,
    until_ms: int,
) -> list[str]:
    """Return the problems of occurrences of cancelled schedules, up to `until_ms` (epoch ms)."""
    received, answers = (_read(stand, topic) for topic in (output, application.settings.results_topic))
    lasts = last_numbers({answer.id: (answer.key or b"").decode() for answer in answers}, answers)
    return list(schedule_problems(ended, received, lasts, until_ms, acceptance.staged_late))


def _read(stand: Stand, topic: str) -> list[Record]:
    records: list[Record] = []
    outputs = Outputs(stand.bootstrap, [topic], records.append)
    try:
        outputs.drain()
    finally:
        outputs.close()
    return records


class _TableWatch(Watch):
    """Samples the live bytes (MB) and files of an application's table, from its log."""

    def __init__(self, folder: Path) -> None:
        super().__init__("table-watch")
        self._folder = folder
        self.samples: dict[str, Samples] = {"table_mb": [], "files": []}

    def run(self) -> None:
        """Take samples until the end."""
        while not self._ended.wait(_SAMPLE_S):
            # The log may be cleaned up meanwhile.
            with suppress(FileNotFoundError):
                live = [size for table in delta_tables(self._folder) for size in live_files(table).values()]
                self.samples["table_mb"].append((time.time(), sum(live) / 2**20))
                self.samples["files"].append((time.time(), len(live)))
