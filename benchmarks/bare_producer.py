"""A plain confluent-kafka producer: the reference for the speed of a delivery.

`python -m benchmarks.bare_producer BOOTSTRAP TOPIC PARTITION COUNT ID` prints `ready` after a first transaction, waits
for a line on standard input, writes COUNT messages in transactions, and prints `done` after the last commit.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from confluent_kafka import Producer

from benchmarks.load import key_of, value_of

TRANSACTION_MESSAGES = 50_000
_TIMEOUT_S = 600


def rate(bootstrap: str, topic: str, count: int, processes: int) -> float:
    """Return the messages/s that `processes` producers together write to `topic`, each to a separate partition."""
    share = count // processes
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bare_producer", bootstrap, topic, str(number), str(share),
             f"bare-{processes}-{number}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(processes)
    ]  # fmt: skip
    try:
        for process in running:
            _expect(process, "ready")
        begun = time.monotonic()
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in running:
            _expect(process, "done")
        return share * processes / (time.monotonic() - begun)
    finally:
        for process in running:
            process.kill()
            process.wait()


def _expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    if process.stdout.readline() != f"{word}\n":
        raise RuntimeError(f"a bare producer ended with {process.wait(_TIMEOUT_S)} before it was {word}")


def main() -> None:
    """Write the same as a delivery: transactions of messages with value, key, timestamp and three headers."""
    bootstrap, topic, partition, count, identity = sys.argv[1:]
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": identity, "linger.ms": 5,
         "queue.buffering.max.messages": 500_000}
    )  # fmt: skip
    producer.init_transactions(30)
    now_ms = time.time_ns() // 1_000_000
    due = b"%d" % now_ms
    numbers = range(min(int(count), TRANSACTION_MESSAGES))
    # Built before the measurement, because a delivery gets its messages ready-made.
    rows = [
        (value_of(n, now_ms * 1000), key_of(n),
         [("deliver-at", due), ("delayline-id", b"burst-in/0/%d" % n), ("delayline-deliver-at", due)])
        for n in numbers
    ]  # fmt: skip

    def write(messages: list[Any]) -> None:
        producer.begin_transaction()
        for value, key, headers in messages:
            while True:
                try:
                    producer.produce(topic, value, key, int(partition), timestamp=now_ms, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.commit_transaction(60)

    # Connecting, and the broker's first transaction for this id, must not count.
    write(rows[:1])
    print("ready", flush=True)
    sys.stdin.readline()
    left = int(count)
    while left:
        write(rows[:left])
        left -= min(left, len(rows))
    print("done", flush=True)


if __name__ == "__main__":
    main()
