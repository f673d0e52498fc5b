"""Every consumer in examples/ reads committed records only, and a comment explains why."""

from __future__ import annotations

import pytest

from tests.docs.documents import ROOT

# How each client sets the isolation level.
_READS_COMMITTED = {
    "python/consumer.py": '"isolation.level": "read_committed"',
    "java/DelayedConsumer.java": 'options.put("isolation.level", "read_committed")',
    "go/consumer/main.go": "kgo.FetchIsolationLevel(kgo.ReadCommitted())",
    "node/consumer.js": "readUncommitted: false",
}


def test_every_consumer_is_known() -> None:
    files = (ROOT / "examples").glob("*/**/*")
    names = [str(path.relative_to(ROOT / "examples")) for path in files if path.is_file()]
    consumers = [name for name in names if "onsumer" in name and "node_modules" not in name]
    assert sorted(consumers) == sorted(_READS_COMMITTED)


@pytest.mark.parametrize("name", _READS_COMMITTED)
def test_a_consumer_reads_committed_records_and_explains_why(name: str) -> None:
    text = (ROOT / "examples" / name).read_text()
    before, option, _ = text.partition(_READS_COMMITTED[name])
    assert option, "it sees messages before they are due"
    assert "before it is due" in before[-400:], "a reader would not know why"
