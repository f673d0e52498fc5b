"""Settings of input topics with names and without names, at no broker."""

from __future__ import annotations

from conf.load import load_settings

NAMED = load_settings(
    None,
    [
        "topics.input=in,named,jobs",
        "policies.named.names=key",
        "presets.jobs=etf1",
        "kafka.bootstrap_servers=127.0.0.1:1",
    ],
    environ={},
)
