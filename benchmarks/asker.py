"""Asks a running job to cancel messages at a rate, and reads the answers, in a separate process.

`python -m benchmarks.asker BOOTSTRAP TOPIC PARTITIONS RESULTS COUNT RATE SECONDS` cancels random messages among the
first COUNT of TOPIC, each once. Message n is in partition n modulo PARTITIONS. RESULTS is the results topic, with the
same number of partitions. The program prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

from state.cancel import CANCEL_HEADER

_TIMEOUT_S = 120.0
_GROUP, _BATCH = 100, 1_000


def main() -> None:
    """Send requests, and print how many had which answer, how long that took, and how long the last answer took."""
    bootstrap, topic, partitions, results, count, rate, seconds = sys.argv[1:]
    parts, requests = int(partitions), int(int(rate) * float(seconds))
    numbers = np.random.default_rng(4).choice(int(count), requests, replace=False).tolist()
    answers = _Answers(bootstrap, results, parts)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 500_000})
    begun_s = time.time()
    # In small groups: to look at the clock and for answers at each request would take most of a core.
    for first in range(0, requests, _GROUP):
        while (ahead_s := begun_s + first / int(rate) - time.time()) > 0:
            answers.read(min(ahead_s, 0.005))
        stamp_ms = int(time.time() * 1000)
        for number in numbers[first : first + _GROUP]:
            place = number % parts
            header = (CANCEL_HEADER, f"{topic}/{place}/{number // parts}".encode())
            producer.produce(topic, None, None, place, timestamp=stamp_ms, headers=[header])
        producer.poll(0)
        answers.read(0)
    producer.flush(_TIMEOUT_S)
    asked_s = time.time()
    while answers.count < requests and time.time() < asked_s + _TIMEOUT_S:
        answers.read(0.1)
    took_ms = np.array(answers.took_ms or [0])
    figures = {
        "asked": requests,
        "answered": answers.count,
        **{result.replace("-", "_"): number for result, number in answers.results.items()},
        "answer_p50_ms": round(float(np.percentile(took_ms, 50))),
        "answer_p99_ms": round(float(np.percentile(took_ms, 99))),
        "last_answer_s": round(time.time() - asked_s, 2),
    }
    print(json.dumps(figures))


class _Answers:
    """Reads the results topic from its end on."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        own = {"group.id": "asker", "enable.auto.commit": False, "isolation.level": "read_committed"}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "fetch.wait.max.ms": 50, **own})
        places = [TopicPartition(topic, number) for number in range(partitions)]
        for place in places:
            place.offset = self._consumer.get_watermark_offsets(place, 10)[1]
        self._consumer.assign(places)
        self.took_ms: list[float] = []
        self.results: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many answers have come."""
        return len(self.took_ms)

    def read(self, wait_s: float) -> None:
        """Take the answers that are there, and wait for the first one up to `wait_s`."""
        first = self._consumer.poll(wait_s)
        for message in () if first is None else (first, *self._consumer.consume(_BATCH, 0)):
            if message.error() is None:
                # An answer has the timestamp of its request.
                self.took_ms.append(time.time() * 1000 - message.timestamp()[1])
                self.results[json.loads(message.value() or b"{}").get("result", "none")] += 1


if __name__ == "__main__":
    main()
