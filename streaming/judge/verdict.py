"""The verdict on a run: compares all received records with all published messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streaming.judge.acceptance import Acceptance, Held
from streaming.judge.contract import Environment, Fault, Finding, record_faults
from streaming.judge.order import OrderCheck
from streaming.judge.record import Published, Received

# If a smaller share of the deliverable messages could be checked for order, the check proves little.
LEAST_CHECKED = 0.5
_SHOWN = 5


@dataclass(frozen=True)
class Verdict:
    """The result of a run, as counts of messages.

    - `published`: all messages; the sum of `deliverable` and `bad`.
    - `deliverable`: messages that must be delivered; of these, `delivered` were delivered as the contract requires.
    - `bad`: messages that must become dead letters; of these, `dead_lettered` became correct dead letters.
    - `order_checked`: deliverable messages that had to be in order, among all or among those that batches took.
    - `forwarded`: deliverable messages that forwarders took.
    - `faults`: the count of each kind of fault; `findings` has the first few of each kind.
    """

    published: int
    deliverable: int
    delivered: int
    bad: int
    dead_lettered: int
    order_checked: int
    forwarded: int
    faults: Mapping[Fault, int]
    findings: tuple[Finding, ...]

    def problems(self, least_checked: float = LEAST_CHECKED) -> list[str]:
        """Return one line for each breach of the contract, or reason why the run proves too little; empty if none.

        `least_checked` is the share of deliverable messages that must have been checked for order.
        """
        lines = []
        for fault, count in self.faults.items():
            shown = "; ".join(f"{finding.id}: {finding.text}" for finding in self.findings if finding.fault is fault)
            lines += [f"{count:,} {fault}, such as {shown}"] if count else []
        if self.order_checked < least_checked * self.deliverable:
            checked = f"only {self.order_checked:,} of {self.deliverable:,} messages were checked for order"
            lines.append(f"{checked}; at least {least_checked:.0%} are required")
        return lines


def judge(
    published: Mapping[str, Published],
    received: Iterable[Received],
    acceptance: Acceptance,
    environment: Environment,
    complete: bool = True,
) -> Verdict:
    """Compare the received records with the published messages.

    Args:
        published: the messages, by id.
        received: the records of all output and dead-letter topics; within a partition, in the order of offsets.
        acceptance: knows which messages the job accepted in time, so that they must be in order.
        environment: partition counts of the topics, and the clock.
        complete: whether `received` must contain all published messages and no others.
    """
    findings: dict[Fault, list[Finding]] = {fault: [] for fault in Fault}
    faults = dict.fromkeys(Fault, 0)

    def add(finding: Finding) -> None:
        faults[finding.fault] += 1
        if len(findings[finding.fault]) < _SHOWN:
            findings[finding.fault].append(finding)

    order = OrderCheck()
    seen: Counter[str] = Counter()
    correct: set[str] = set()
    order_checked = 0
    for record in received:
        identity = record.id
        message = published.get(identity)
        if message is None:
            if complete:
                add(Finding(Fault.FOREIGN, identity, f"in {record.topic}/{record.partition} at {record.offset}"))
            continue
        seen[identity] += 1
        of_record = list(record_faults(record, message, environment))
        for finding in of_record:
            add(finding)
        if not of_record:
            correct.add(identity)
        if seen[identity] > 1:
            add(Finding(Fault.DOUBLED, identity, f"again in {record.topic}/{record.partition} at {record.offset}"))
        elif (
            message.error is None
            and not message.made_due
            and not any(finding.fault is Fault.MISPLACED for finding in of_record)
        ):
            held, is_forwarded = acceptance.held(message), acceptance.is_forwarded(message)
            order_checked += held is not Held.NOT
            if (order_finding := order.take(record, message, held, is_forwarded)) is not None:
                add(order_finding)
    if complete:
        for identity in published:
            if identity not in seen:
                add(Finding(Fault.LOST, identity, f"was not delivered to {published[identity].output}"))
    bad = {identity for identity, message in published.items() if message.error is not None}
    return Verdict(
        published=len(published),
        deliverable=len(published) - len(bad),
        delivered=len(correct - bad),
        bad=len(bad),
        dead_lettered=len(correct & bad),
        order_checked=order_checked,
        forwarded=sum(acceptance.is_forwarded(message) for message in published.values() if message.error is None),
        faults=faults,
        findings=tuple(finding for kind in findings.values() for finding in kind),
    )
