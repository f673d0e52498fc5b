"""Every consumer of examples/ reads committed records only, and says why."""

from __future__ import annotations

import pytest

from tests.docs.documents import ROOT

# How each client is asked for it.
_READS_COMMITTED = {
    "python/consumer.py": '"isolation.level": "read_committed"',
    "java/DelayedConsumer.java": 'options.put("isolation.level", "read_committed")',
    "go/consumer/main.go": "kgo.FetchIsolationLevel(kgo.ReadCommitted())",
    "node/consumer.js": "readUncommitted: false",
}


def test_every_consumer_is_known() -> None:
    files = (ROOT / "examples").glob("*/**/*")
    found = [str(path.relative_to(ROOT / "examples")) for path in files if path.is_file()]
    consumers = [name for name in found if "onsumer" in name and "node_modules" not in name]
    assert sorted(consumers) == sorted(_READS_COMMITTED)


@pytest.mark.parametrize("name", _READS_COMMITTED)
def test_a_consumer_reads_committed_records_and_says_why(name: str) -> None:
    text = (ROOT / "examples" / name).read_text()
    before, found, _ = text.partition(_READS_COMMITTED[name])
    assert found, "it sees messages before they are due"
    assert "before it is due" in before[-400:], "a reader would not know why"
