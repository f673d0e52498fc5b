"""Shows delivered messages, and how late each is. Ends after COUNT messages, if COUNT is given.

    python consumer.py [SERVERS] [OUTPUT_TOPIC] [COUNT]

Needs confluent-kafka.
"""

from __future__ import annotations

import sys
import time

from confluent_kafka import Consumer


def main(servers: str = "127.0.0.1:9092", topic: str = "delayline-out", count: str = "0") -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "delayline-example-python",
            "auto.offset.reset": "earliest",
            # Delayline writes a message before it is due, and commits when it is due. An uncommitted reader sees it
            # early, and sees messages of aborted transactions as well. (The default of librdkafka alone.)
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    seen = 0
    try:
        while not int(count) or seen < int(count):
            message = consumer.poll(1.0)
            if message is None:
                continue
            if error := message.error():
                raise SystemExit(f"not read: {error}")
            headers = dict(message.headers() or [])
            late_ms = time.time_ns() // 1_000_000 - int(headers["delayline-deliver-at"])
            print(f"{message.value().decode()}  {late_ms} ms late  {headers['delayline-id'].decode()}", flush=True)
            # After the work is done: what is not committed is read again after a crash.
            consumer.commit(message, asynchronous=False)
            seen += 1
    finally:
        consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
