"""The health of a release process: what its probes are told while it starts, waits for brokers, or stands still."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from streaming.monitor.release_metrics import release_health
from tests.streaming.monitor.groups import group

_SHARDS = {0: SimpleNamespace(releasing=True, still_s=0), 1: SimpleNamespace(releasing=False, still_s=200)}


@pytest.mark.parametrize(
    ("assigned", "shards", "reasons"),
    [
        ({0}, {0}, []),
        ({0, 1}, {0, 1}, ["shards [1] release no messages: they read their ready log first, or wait for brokers"]),
        ({0, 2}, {0}, ["shards [2] release no messages: they read their ready log first, or wait for brokers"]),
        # In an outage of all brokers the client gives the shards back.
        (set(), set(), ["the process has no shards"]),
    ],
)
def test_a_process_is_ready_when_all_of_its_shards_release_and_live_in_any_case(
    assigned: set[int], shards: set[int], reasons: list[str]
) -> None:
    own = {number: _SHARDS[number] for number in shards}
    process = SimpleNamespace(assigned=assigned, shards=own, group=group())
    health = release_health(cast(Any, process), 60_000)
    assert (health.live, health.ready, health.reasons) == (True, not reasons, reasons)


@pytest.mark.parametrize(("timeout_s", "live"), [(60, False), (100, True)])
def test_a_process_that_stands_still_is_live_for_as_long_as_it_may_wait_for_a_transaction_in_an_outage(
    timeout_s: int, live: bool
) -> None:
    process = SimpleNamespace(assigned={0}, shards={0: _SHARDS[0]}, group=group(silent_s=100))
    health = release_health(cast(Any, process), timeout_s * 1000)
    assert (health.live, health.ready) == (live, live)
    assert health.reasons == ([] if live else ["the process has not polled its consumer group for 100 s"])


@pytest.mark.parametrize(("timeout_s", "live"), [(1, False), (60, False), (100, True)])
def test_a_process_is_not_live_if_a_shard_of_it_hangs_for_longer_than_any_wait(timeout_s: int, live: bool) -> None:
    shards = {0: SimpleNamespace(releasing=True, still_s=0.1), 1: SimpleNamespace(releasing=True, still_s=241)}
    process = SimpleNamespace(assigned={0, 1}, shards=shards, group=group())
    health = release_health(cast(Any, process), timeout_s * 1000)
    assert (health.live, health.ready) == (live, live)
    bound_s = {1: 90, 60: 240}
    assert health.reasons == ([] if live else [f"shards [1] hang: no progress for {bound_s[timeout_s]} s"])


def test_a_process_is_not_ready_while_its_group_refuses_it_or_has_members_that_release_nothing() -> None:
    process = SimpleNamespace(assigned=set(), shards={}, group=group(refusal="group g does not take north: full"))
    health = release_health(cast(Any, process), 60_000)
    assert (health.live, health.ready) == (True, False)
    assert health.reasons == ["the process has no shards", "group g does not take north: full"]
    own = SimpleNamespace(assigned={0}, shards={0: _SHARDS[0]}, group=group(strangers={"tool at 10.0.0.9": [1, 2]}))
    health = release_health(cast(Any, own), 60_000)
    assert (health.live, health.ready) == (True, False)
    assert health.reasons == ["consumer tool at 10.0.0.9 is not a release process, and blocks shards [1, 2]"]
