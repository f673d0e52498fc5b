"""Publishes three messages: one at once, one after two seconds, one at an instant.

    python producer.py [SERVERS] [INPUT_TOPIC]

Needs confluent-kafka. The delay is a header of the record; nothing else differs from any other Kafka producer.
"""

from __future__ import annotations

import sys
import time

from confluent_kafka import KafkaError, Message, Producer


def main(servers: str = "127.0.0.1:9092", topic: str = "delayline-in") -> None:
    # Idempotence: a retry of the producer must not publish a message twice. Delayline delivers each record once.
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    in_three_seconds_ms = time.time_ns() // 1_000_000 + 3_000
    publish = [
        ("at once", []),
        ("after two seconds", [("deliver-after", "2s")]),
        ("at an instant", [("deliver-at", str(in_three_seconds_ms))]),
    ]
    for value, headers in publish:
        # The key decides the output partition, and with it what the message is ordered with.
        producer.produce(topic, value.encode(), key=b"anna", headers=headers, on_delivery=print_id)
    if left := producer.flush(30):
        raise SystemExit(f"{left} messages were not confirmed")


def print_id(error: KafkaError | None, message: Message) -> None:
    """Print the message id, under which the message is delivered (header `delayline-id`)."""
    if error is not None:
        raise SystemExit(f"not published: {error}")
    print(f"{message.topic()}/{message.partition()}/{message.offset()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
