"""Which claims are deleted. No broker."""

from __future__ import annotations

from contextlib import closing

import pytest

from conf.settings import Settings
from state.checkpoint.origin import CheckpointOrigin, Offsets
from state.checkpoint.progress import BatchSpan
from streaming.job.lanes import old_claims
from streaming.job.lanes.old_claims import OldClaims


def test_what_an_origin_says_of_a_topic_that_was_created_again_is_not_about_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[Offsets, dict[str, str]]] = []
    bounds = {("kept", 0): (3, 90), ("again", 0): (0, 40), ("again", 1): (2, 40)}
    monkeypatch.setattr(old_claims, "input_bounds", lambda _: bounds)
    monkeypatch.setattr(old_claims, "delete_claims", lambda _, __, needed, ids, ___: calls.append((needed, ids)))
    offsets = {"kept": {"0": 70}, "again": {"0": 1_000, "1": 1_000}}
    origin = CheckpointOrigin("c", 5, 1, offsets=offsets, input_ids={"kept": ["K"], "again": ["A"]})
    with closing(OldClaims(Settings(), every_s=-1.0)) as claims:
        claims.before_batch(BatchSpan(origin, 7, input_ids={"kept": ["K"], "again": ["A", "B"]}))
        claims._running.result()
    needed = {"kept": {"0": 70}, "again": {"0": 0, "1": 2}}
    assert calls == [(needed, {"kept": "K", "again": "B"})]
