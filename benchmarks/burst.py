"""Burst: very many messages due at the same instant, against a bare producer that writes as many."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.bare_producer import rate as bare_rate
from benchmarks.job import Application
from benchmarks.load import Load, Publisher, instant
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import figure_of
from benchmarks.receiver import Received, Receiver
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.waiting import say, wait_until

MESSAGES = 1_000_000
# From the start of the publishing to the burst, which must find everything ingested.
LEAD_S, SHORTEST_LEAD_S = 120.0, 40.0
TIMEOUT_S = 600.0
_SETTLED_S = 3.0


def measure(stand: Stand, scale: float) -> Outcome:
    """Publish to a running job, wait for the instant, and watch how far subscribers of committed records can read."""
    count = int(MESSAGES * scale)
    application = stand.application("burst")
    job = stand.job(application)
    due_s = int(time.time() + max(SHORTEST_LEAD_S, LEAD_S * scale))
    say(f"publishing {count:,} messages due in {due_s - time.time():.0f} s, all at once")
    now_ms = time.time_ns() // 1_000_000
    loads = (Load(number, due_s * 1000, now_ms) for number in range(count))
    Publisher(stand.bootstrap, application.input, PARTITIONS).preload(loads, instant)
    job.wait_for_messages(count, TIMEOUT_S)
    spare_s = due_s - application.settings.clock.lookahead / 1000 - job.batches.batches[-1].committed_s
    sealed = sum(messages for messages, _ in job.batch_lines().values())
    say(f"ingested with {spare_s:.0f} s to spare, {sealed:,} sealed")
    if spare_s < 0:
        raise RuntimeError(f"the burst came {-spare_s:.1f} s before all was ingested: raise burst.LEAD_S")
    points = _watch(stand, application, count, due_s, job.check)
    usage = job.usage.between(due_s, due_s + points[-1][0])
    job.stop()
    received = _read_back(stand, application, count)
    faults: dict[str, float] = dict(received.faults(count))
    # Nobody read while it ran, so that a record's own arrival says nothing about early.
    faults["early"] = max([seen for at_s, seen in points if at_s < 0], default=0)
    rate = count / points[-1][0]
    say("a bare producer writes the same")
    one, two = (bare_rate(stand.bootstrap, stand.topic(f"bare-{n}"), count, n) for n in (1, 2))
    figures: dict[str, dict[str, Any]] = {
        "job": {
            "messages": count,
            "messages_per_s": round(rate),
            "first_visible_s": next(at_s for at_s, seen in points if seen),
            "last_visible_s": points[-1][0],
            "ratio_to_two_producers": round(rate / two, 3),
            "sealed": sealed,
            "ingested_before_s": round(spare_s, 1),
            **faults,
            **usage,
        },
        "one bare producer": {"messages": count, "messages_per_s": round(one)},
        "two bare producers": {"messages": count // 2 * 2, "messages_per_s": round(two)},
    }
    if sum(faults[name] for name in ("early", "out_of_order", "lost", "duplicates", "altered")):
        say(f"THE CONTRACT IS BROKEN: {faults}")
    aims = [
        Aim("messages/s delivered", rate, 150_000, "/s", at_least=True),
        Aim("messages/s delivered, of one bare producer's", rate / one, 0.5, at_least=True),
    ]
    series = {"Delayline": [list(column) for column in zip((0.0, 0.0), *points, strict=True)]}
    for case, bare in (("one bare producer", one), ("two bare producers", two)):
        series[case] = [[0.0, round(count / bare, 3)], [0.0, float(count)]]
    return Outcome("burst", f"{count:,} messages due at the same instant", aims, figures, series, one_is_enough=True)


def draw(outcome: Outcome) -> Any:
    """Draw visible messages over time."""
    figure, axes = figure_of(outcome)
    for case, (seconds, messages) in outcome.series.items():
        axes.plot(seconds, messages, label=case, drawstyle="steps-post" if len(seconds) > 2 else "default")
    axes.set(xlabel="s since deliver_at", ylabel="committed messages")
    axes.legend()
    return figure


def _watch(stand: Stand, application: Application, count: int, due_s: int, check: Any) -> list[tuple[float, float]]:
    """Return (s since due, offsets that a subscriber can read up to) whenever that grew, until it grows no more.

    Looking at the end of the topic costs the two cores nothing; a subscriber at this rate would take one of them.
    Each transaction takes an offset of a partition for its mark, which counts for a message here: one in thousands.
    """
    points: list[tuple[float, float]] = []

    def settled() -> bool:
        seen = float(sum(stand.end_offsets(application.output)))
        # Taken after the answer: what is seen before the instant is early without a doubt.
        now_s = time.time()
        if seen > (points[-1][1] if points else 0.0):
            points.append((round(now_s - due_s, 3), seen))
        return bool(points) and points[-1][1] >= count and now_s - due_s - points[-1][0] > _SETTLED_S

    wait_until(settled, due_s - time.time() + TIMEOUT_S, f"{count:,} messages delivered", check)
    return points


def _read_back(stand: Stand, application: Application, count: int) -> Received:
    out = stand.folder / "burst.npz"
    with Receiver(stand.bootstrap, application.output, PARTITIONS, count, 60 + count / 20_000, out) as receiver:
        return receiver.result()
