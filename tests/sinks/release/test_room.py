"""How many messages a transaction has room for."""

from __future__ import annotations

from conf.settings import Settings
from sinks.release.context import ReleaseContext
from sinks.release.records import bytes_at_most
from sinks.release.room import Room
from sinks.release.shard import ShardRelease
from tests.messages import messages


def test_at_the_defaults_a_transaction_of_small_messages_has_as_many_as_its_setting_says() -> None:
    settings = Settings()
    release = ShardRelease(ReleaseContext(settings, "test"), 0)
    release.share_memory(settings.bucket.shards)
    limits = release._limits(clock_ms=1)
    most = settings.release.transaction_messages
    due = messages({"offset": n, "deliver_at_ms": 1, "value": b"v" * 100} for n in range(2 * most))
    (batch,) = due.combine_chunks().to_batches()
    assert Room(limits).first_of(due, bytes_at_most(batch)) == most
