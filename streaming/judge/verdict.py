"""The verdict on all that was received, against all that was published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streaming.judge.acceptance import Acceptance
from streaming.judge.contract import Fault, Finding, Surroundings, faults_alone
from streaming.judge.order import OrderCheck
from streaming.judge.record import Published, Received

# Of the messages that are to be delivered: if a smaller share was held to order, its order proves little.
LEAST_HELD = 0.5
_SHOWN = 5


@dataclass(frozen=True)
class Verdict:
    """What the contract says about a run.

    `deliverable` and `bad` make up all that was `published`. `delivered` of the one and `dead_lettered` of the other
    came out as the contract has it, `held` of the deliverable ones were held to order. `faults` has a count for every
    kind of fault, `findings` the first few of each kind.
    """

    published: int
    deliverable: int
    delivered: int
    bad: int
    dead_lettered: int
    held: int
    faults: Mapping[Fault, int]
    findings: tuple[Finding, ...]

    def problems(self, least_held: float = LEAST_HELD) -> list[str]:
        """Say in a line each what breaks the contract, or leaves it unproven; nothing if it was kept.

        `least_held` is the share of deliverable messages that must have been held to order.
        """
        lines = []
        for fault, count in self.faults.items():
            shown = "; ".join(f"{finding.id}: {finding.text}" for finding in self.findings if finding.fault is fault)
            lines += [f"{count:,} {fault}, such as {shown}"] if count else []
        if self.held < least_held * self.deliverable:
            least = f"at least {least_held:.0%} were to be"
            lines.append(f"only {self.held:,} of {self.deliverable:,} messages were held to order, {least}")
        return lines


def judge(
    published: Mapping[str, Published],
    received: Iterable[Received],
    acceptance: Acceptance,
    surroundings: Surroundings,
    complete: bool = True,
) -> Verdict:
    """Compare what was published with what was received.

    - `published`: the messages, by id.
    - `received`: the records of every topic that one can come out on, those of a partition in the order of offsets.
    - `acceptance`: which messages the job accepted in time to be held to order.
    - `surroundings`: partitions of the topics, and the clock.
    - `complete`: all that was published has to be there, and nothing else.
    """
    findings: dict[Fault, list[Finding]] = {fault: [] for fault in Fault}
    faults = dict.fromkeys(Fault, 0)

    def find(finding: Finding) -> None:
        faults[finding.fault] += 1
        if len(findings[finding.fault]) < _SHOWN:
            findings[finding.fault].append(finding)

    order = OrderCheck()
    seen: Counter[str] = Counter()
    right: set[str] = set()
    held = 0
    for record in received:
        identity = record.id
        message = published.get(identity)
        if message is None:
            if complete:
                find(Finding(Fault.FOREIGN, identity, f"in {record.topic}/{record.partition} at {record.offset}"))
            continue
        seen[identity] += 1
        alone = list(faults_alone(record, message, surroundings))
        for finding in alone:
            find(finding)
        if not alone:
            right.add(identity)
        if seen[identity] > 1:
            find(Finding(Fault.DOUBLED, identity, f"again in {record.topic}/{record.partition} at {record.offset}"))
        elif message.error is None and not any(finding.fault is Fault.MISPLACED for finding in alone):
            must = acceptance.holds_to_order(message)
            held += must
            if (finding_of_order := order.take(record, message, must)) is not None:
                find(finding_of_order)
    if complete:
        for identity in published:
            if identity not in seen:
                find(Finding(Fault.LOST, identity, f"has not come out on {published[identity].output}"))
    bad = {identity for identity, message in published.items() if message.error is not None}
    return Verdict(
        published=len(published),
        deliverable=len(published) - len(bad),
        delivered=len(right - bad),
        bad=len(bad),
        dead_lettered=len(right & bad),
        held=held,
        faults=faults,
        findings=tuple(finding for kind in findings.values() for finding in kind),
    )
