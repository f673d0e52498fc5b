"""By which clock a plan chooses the next cutoff, and whether this process still holds the lease then."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from conf.errors import ApplicationHeld, ClockAhead
from conf.load import load_settings
from conf.setting_types import DAY, MINUTE
from state.checkpoint.batch_settings import NONE_REFUSED
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.planned_batch import PlannedBatch
from state.taken import NONE_TAKEN
from streaming.job.steps import planning
from streaming.job.steps.planning import Planner
from streaming.monitor.job_metrics import JobCounts
from tests.messages import some_batch_settings

_BEGUN_MS = 20_000 * DAY


class Clocks:
    """This host's clock and the broker's, as far ahead of `_BEGUN_MS` as a test moves them (ms), and the lease."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host_ms = self.broker_ms = _BEGUN_MS
        self.is_taken = False
        monkeypatch.setattr(planning, "now_ms", lambda: self.host_ms)

    def pass_by(self, ms: int) -> None:
        """Let time pass."""
        self.host_ms += ms
        self.broker_ms += ms

    def check(self) -> None:
        """Raise ApplicationHeld if another process holds the lease."""
        if self.is_taken:
            raise ApplicationHeld("another process holds the lease")

    def check_now(self) -> None:
        """Ask the broker, which nothing needs here."""

    def planner(self, claims: Callable[[], None], refusal: Callable[[], None]) -> Planner:
        """Return a planner that calls `claims` while it waits for claims, and then `refusal` while it decides that."""
        checkpoint = SimpleNamespace(
            origin=CheckpointOrigin("c", 1, 1),
            planned=lambda batch_id: PlannedBatch(batch_id, _BEGUN_MS, _BEGUN_MS + MINUTE, {}),
            first_offsets=dict,
        )
        history = SimpleNamespace(at=lambda _: some_batch_settings())
        state: Any = SimpleNamespace(planned=None, checkpoint=checkpoint, settings_history=history)
        watch: Any = SimpleNamespace(wait=lambda _: _after(claims, NONE_TAKEN))
        admission: Any = SimpleNamespace(refusal=lambda *_: _after(refusal, NONE_REFUSED))
        window: Any = SimpleNamespace(next_cutoff=lambda _, wanted_ms: wanted_ms)
        lease: Any = self
        return Planner(state, load_settings(None, [], environ={}), lease, watch, admission, window, JobCounts())


def _after(wait: Callable[[], None], found: Any) -> Any:
    wait()
    return found


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def test_the_next_cutoff_is_not_behind_by_what_its_plan_has_waited_for(clocks: Clocks) -> None:
    planner = clocks.planner(lambda: clocks.pass_by(5 * MINUTE), lambda: clocks.pass_by(2 * MINUTE))
    _, span = planner.begin(0)
    # For merges.
    clocks.pass_by(MINUTE)
    assert planner.plan(span).next_cutoff_ms == clocks.host_ms + MINUTE == _BEGUN_MS + 9 * MINUTE
    # Its own cutoff is from before, so that it leaves due messages to the next batch.
    assert planner.is_behind(span)


def test_a_clock_that_is_put_ahead_while_a_plan_waits_chooses_no_cutoff(clocks: Clocks) -> None:
    def put_ahead() -> None:
        clocks.host_ms += DAY

    planner = clocks.planner(put_ahead, lambda: None)
    _, span = planner.begin(0)
    with pytest.raises(ClockAhead, match="this host's clock shows"):
        planner.plan(span)


@pytest.mark.parametrize("at_refusal", [False, True])
def test_a_plan_that_waited_until_another_process_took_the_lease_is_not_carried_out(
    clocks: Clocks, at_refusal: bool
) -> None:
    def lose_lease() -> None:
        clocks.is_taken = True

    waits = (lambda: None, lose_lease) if at_refusal else (lose_lease, lambda: None)
    planner = clocks.planner(*waits)
    _, span = planner.begin(0)
    with pytest.raises(ApplicationHeld):
        planner.plan(span)
