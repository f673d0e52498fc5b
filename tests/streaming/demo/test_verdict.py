"""The demo's judge must find each kind of fault: one that finds nothing proves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sources.subscriber import Received
from streaming.demo.messages import Sent, Wanted
from streaming.demo.verdict import Outage, Verdict, judge

DOWN = Outage(killed_ms=50_000, back_ms=60_000)
SENT = {
    f"in/0/{n}": Sent(Wanted(b"k", b"v", [("trace", b"1")], "out", delay_ms=1_000), f"in/0/{n}", n, 1_000 + n)
    for n in range(10)
}
BAD = Sent(Wanted(b"k", b"v", [("deliver-after", b"soon")], "dead", error="bad-deliver-after"), "in/0/10", 10, None)


def _record(sent: Sent, offset: int) -> Received:
    own = [("delayline-id", sent.id.encode())]
    if sent.deliver_at_ms is None:
        own += [("delayline-error", (sent.wanted.error or "").encode()), ("delayline-error-text", b"...")]
        due = sent.published_ms
    else:
        own += [("delayline-deliver-at", str(sent.deliver_at_ms).encode())]
        due = sent.deliver_at_ms
    wanted = sent.wanted
    headers = [*wanted.headers, *own]
    return Received(wanted.output, 0, offset, due, wanted.key, wanted.value, headers, due + 200)


def _judged(got: list[Received]) -> Verdict:
    return judge({**SENT, BAD.id: BAD}, got, DOWN)


@pytest.fixture
def got() -> list[Received]:
    return [*(_record(sent, at) for at, sent in enumerate(SENT.values())), _record(BAD, 0)]


def test_a_run_without_a_fault_holds(got: list[Received]) -> None:
    verdict = _judged(got)
    assert verdict.holds
    assert (verdict.delivered, verdict.dead_lettered) == (10, 1)
    assert (verdict.overall.p50, verdict.overall.p99) == (200, 200)


@pytest.mark.parametrize("fault", ["lost", "duplicate", "early", "out_of_order", "altered"])
def test_each_fault_is_counted_once(got: list[Received], fault: str) -> None:
    first, second, *rest = got
    broken = {
        "lost": [second, *rest],
        "duplicate": [*got, replace(first, offset=-1)],
        "early": [replace(first, received_ms=first.timestamp_ms - 1), second, *rest],
        "out_of_order": [replace(first, offset=1), replace(second, offset=0), *rest],
        "altered": [replace(first, value=b"x"), second, *rest],
    }
    verdict = _judged(broken[fault])
    assert not verdict.holds
    faults = ["lost", "duplicate", "early", "out_of_order", "altered"]
    assert {name: getattr(verdict, name) for name in faults} == {name: int(name == fault) for name in faults}


def test_a_dead_letter_with_another_code_does_not_count(got: list[Received]) -> None:
    *good, dead = got
    wrong = replace(dead, headers=[*dead.headers, ("delayline-error", b"two-delays")])
    verdict = _judged([*good, wrong])
    assert (verdict.dead_lettered, verdict.holds) == (0, False)


def test_what_the_job_could_not_read_before_it_was_due_may_come_out_of_order() -> None:
    wanted = Wanted(None, b"v", [], "out", delay_ms=1_000)
    early = Sent(wanted, "in/0/1", 52_000, 53_000)
    late = Sent(wanted, "in/0/2", 54_000, 55_000)
    got = [_record(late, 0), _record(early, 1)]
    assert judge({"in/0/1": early, "in/0/2": late}, got, DOWN).out_of_order == 0
    assert judge({"in/0/1": early, "in/0/2": late}, got, Outage(40_000, 41_000)).out_of_order == 1
