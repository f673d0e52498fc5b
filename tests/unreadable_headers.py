"""Records with a header name that is not UTF-8. Kafka takes them, and most clients refuse to write them."""

from __future__ import annotations

from typing import Any

from kafka import KafkaProducer


class _NoText(str):
    """A name that kafka-python writes as a byte that UTF-8 does not have."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"\xff"


def write_unreadable(
    bootstrap: str,
    topic: str,
    value: bytes | None,
    key: bytes | None = None,
    headers: list[tuple[str, bytes]] | None = None,
    partition: int = 0,
    count: int = 1,
) -> int:
    """Write `count` records with `headers`, after a header with a name that is not text. Return the last offset."""
    producer: Any = KafkaProducer(bootstrap_servers=bootstrap)
    try:
        own = [(_NoText("?"), b"1"), *(headers or [])]
        *_, last = [producer.send(topic, value, key, own, partition) for _ in range(count)]
        return int(last.get(30).offset)
    finally:
        producer.close()
