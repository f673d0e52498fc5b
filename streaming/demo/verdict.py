"""The demo's judge. It knows what was published and what a subscriber got, and nothing of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sources.subscriber import Received
from state.dead_letter import ERROR_HEADER
from state.message import DELIVER_AT_HEADER, ID_HEADER
from streaming.demo.messages import Sent

_OWN = [ID_HEADER, DELIVER_AT_HEADER]
# What was published so shortly before the job was killed may not have been read by it.
_UNREAD_MS = 1_000


@dataclass(frozen=True)
class Outage:
    """From the kill to the first delivery after it, epoch ms."""

    killed_ms: int
    back_ms: int


@dataclass(frozen=True)
class Lateness:
    """Of `count` messages, in ms; NaN of none."""

    count: int
    p50: float
    p99: float


@dataclass(frozen=True)
class Verdict:
    """What the contract says about a run. `altered` counts records with another key, value, header, topic or time."""

    published: int
    deliverable: int
    delivered: int
    bad: int
    dead_lettered: int
    lost: int
    duplicate: int
    early: int
    out_of_order: int
    altered: int
    overall: Lateness
    without_outage: Lateness
    plain: Lateness

    @property
    def holds(self) -> bool:
        """Whether the contract was kept."""
        faults = (self.lost, self.duplicate, self.early, self.out_of_order, self.altered)
        complete = self.delivered == self.deliverable and self.dead_lettered == self.bad
        return complete and self.published == self.deliverable + self.bad and not any(faults)


def judge(sent: Mapping[str, Sent], got: Sequence[Received], outage: Outage) -> Verdict:
    """Compare what was published (by id) with all records of the output topics and the dead-letter topic."""
    counts = Counter(record.id or "?" for record in got)
    good = {identity for identity, message in sent.items() if message.wanted.error is None}
    right = {record.id for record in got if _is_right(record, sent)}
    delayed, spared, plain = [], [], []
    for record in got:
        message = sent.get(record.id or "")
        if message is None or message.deliver_at_ms is None:
            continue
        late = record.received_ms - message.deliver_at_ms
        if message.wanted.delay_ms == 0:
            plain.append(late)
            continue
        delayed.append(late)
        if record.received_ms < outage.killed_ms or message.deliver_at_ms > outage.back_ms:
            spared.append(late)
    return Verdict(
        published=len(sent),
        deliverable=len(good),
        delivered=len(right & good),
        bad=len(sent) - len(good),
        dead_lettered=len(right - good),
        lost=len(set(sent) - set(counts)),
        duplicate=sum(count - 1 for count in counts.values()),
        early=sum(late < 0 for late in delayed + plain),
        out_of_order=_out_of_order(sent, got, outage),
        altered=sum(not _is_right(record, sent) for record in got),
        overall=_lateness(delayed),
        without_outage=_lateness(spared),
        plain=_lateness(plain),
    )


def _is_right(record: Received, sent: Mapping[str, Sent]) -> bool:
    """Say whether the record is what the contract makes of the message whose id it carries."""
    message = sent.get(record.id or "")
    if message is None:
        return False
    wanted = message.wanted
    own = [name for name, _ in record.headers[len(wanted.headers) :]]
    whole = (
        record.topic == wanted.output
        and (record.key, record.value) == (wanted.key, wanted.value)
        and record.headers[: len(wanted.headers)] == wanted.headers
    )
    if wanted.error is not None:
        return whole and record.header(ERROR_HEADER) == wanted.error.encode()
    on_time = record.deliver_at_ms == record.timestamp_ms == message.deliver_at_ms
    return whole and on_time and own == _OWN


def _out_of_order(sent: Mapping[str, Sent], got: Iterable[Received], outage: Outage) -> int:
    """Count records that come after one that is due later, in their partition.

    The order holds for what was accepted before it was due: so not for plain messages, nor for one that the job
    could not read before it was due because it was down.
    """
    last: dict[tuple[str, int], tuple[int, int, int]] = {}
    count = 0
    for record in sorted(got, key=lambda record: (record.topic, record.partition, record.offset)):
        message = sent.get(record.id or "")
        if message is None or message.deliver_at_ms is None or message.wanted.delay_ms == 0:
            continue
        _, partition, offset = message.id.rsplit("/", 2)
        place = (message.deliver_at_ms, int(partition), int(offset))
        if place >= last.get((record.topic, record.partition), place):
            last[record.topic, record.partition] = place
        elif not (message.published_ms >= outage.killed_ms - _UNREAD_MS and message.deliver_at_ms <= outage.back_ms):
            count += 1
    return count


def _lateness(values: list[int]) -> Lateness:
    if not values:
        return Lateness(0, float("nan"), float("nan"))
    p50, p99 = np.percentile(values, [50, 99])
    return Lateness(len(values), float(p50), float(p99))
