"""The settings by who sets them: everybody, operators of a large or unusual deployment, or hardly anybody."""

from __future__ import annotations

EVERYBODY = (
    "application_id",
    "kafka.bootstrap_servers",
    "topics.input",
    "topics.output",
    "topics.allowed_outputs",
    "topics.dead_letter",
    "storage.path",
    "bucket.shards",
)
"""The eight that each deployment decides about."""

ADVANCED = (
    "clock.trigger",
    "clock.skew_limit",
    "cancels.known_for",
    "bucket.max_messages",
    "bucket.max_bytes",
    "bucket.fan_in",
    "window.max_bytes",
    "release.transaction_messages",
    "release.max_bytes",
    "release.transaction_timeout",
    "forward.trigger",
    "lease.period",
)
"""Those that trade one internal cost for another. Measure before and after a change."""


def group_of(key: str) -> str:
    """Return the group of a setting, `section.key`: "everybody", "operators" or "advanced"."""
    if key in EVERYBODY:
        return "everybody"
    return "advanced" if key in ADVANCED else "operators"
