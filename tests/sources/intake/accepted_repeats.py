"""Accepts records that repeat, and says which messages they become."""

from __future__ import annotations

from typing import Any

from sources.intake.accept import accept
from state.checkpoint.batch_settings import DelayPolicy
from state.kinds import REPEATING
from state.repeats.waiting import waiting_in
from tests.messages import PARTITIONS, headers, records, some_batch_settings

CLOCK_MS = 1_798_000_000_000
WRITTEN_MS = CLOCK_MS - 1_000
TOPIC, RESULTS = "delayline-in", "delayline-results"
MINUTE, QUARTER, HOUR, DAY = 60_000, 900_000, 3_600_000, 86_400_000
RULE = ("delayline-repeat", b"every 10m")
POLICY = DelayPolicy(repeats=True)


def settings(policy: DelayPolicy = POLICY, **changes: Any) -> Any:
    """Return settings of a batch with a policy, by default one that allows messages to repeat."""
    return some_batch_settings(policy=policy, partitions=PARTITIONS | {RESULTS: 3}, **changes)


def accepted(*pairs: tuple[str, bytes | None], policy: DelayPolicy = POLICY, **changes: Any) -> dict[str, Any]:
    """Return the message that a record with these headers becomes, with its schedule in the column `schedule`."""
    stamp = changes.pop("timestamp_ms", WRITTEN_MS)
    row = {"timestamp_ms": stamp, "offset": 7, "headers": headers(*pairs), "key": b"k"}
    found = accept(records([row]), settings(policy, **changes), CLOCK_MS).messages
    message: dict[str, Any]
    (message,) = found.slice(0, 1).to_pylist()
    schedules = [] if message["kind"] != REPEATING else waiting_in(found.slice(0, 1))
    return message | {"waiting": schedules[0] if schedules else None}
