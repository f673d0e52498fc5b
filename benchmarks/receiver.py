"""A subscriber of committed records in a separate process, so that no other work delays its timestamps.

`python -m benchmarks.receiver BOOTSTRAP TOPICS STARTS COUNT TIMEOUT_S OUT` prints `ready`, and reads the topics ("a,b")
from the offsets STARTS (one for each partition, such as "0,0,0,0") until it has COUNT records. All topics have the same
number of partitions. It reads for two more seconds, to find surplus records, and writes an array for each column to
OUT, a .npz file. Partitions are numbered through all topics.
"""

from __future__ import annotations

import subprocess
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, TopicPartition

from benchmarks.load import read_value

_GRACE_S = 2.0
# Errors while the broker is down: the client reconnects.
_TRANSIENT = {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "COORDINATOR_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION"}
COLUMNS = ("partition", "offset", "number", "due_us", "received_us", "header_ms", "in_partition", "in_offset")


@dataclass(frozen=True)
class Received:
    """The received records as columns, ordered by output partition and offset. Instants are epoch microseconds."""

    columns: dict[str, npt.NDArray[np.int64]]

    @classmethod
    def read(cls, file: Path) -> Received:
        """Read a file that `main` wrote."""
        with np.load(file) as columns:
            order = np.lexsort((columns["offset"], columns["partition"]))
            return cls({name: columns[name][order] for name in COLUMNS})

    def __getitem__(self, name: str) -> npt.NDArray[np.int64]:
        return self.columns[name]

    def where(self, chosen: npt.NDArray[np.bool_]) -> Received:
        """Return the `chosen` records."""
        return Received({name: column[chosen] for name, column in self.columns.items()})

    def and_of_others(self, others: Received) -> Received:
        """Return these records and the records of other topics, with partitions numbered after these."""
        behind = int(self["partition"].max(initial=-1)) + 1
        moved = others.columns | {"partition": others["partition"] + behind}
        return Received({name: np.concatenate([self[name], moved[name]]) for name in COLUMNS})

    @property
    def lateness_ms(self) -> npt.NDArray[np.float64]:
        """Time received minus due time. The due time is the one in the value, from the publisher."""
        return np.asarray((self["received_us"] - self["due_us"]) / 1000)

    def faults(self, published: int, first: int = 0) -> dict[str, int]:
        """Count the faults, given that `published` messages were numbered from `first`.

        - `inversions`: neighbours in an output partition with descending due times.
        - `out_of_order`: neighbours that violate the contract's full order.
        - `altered`: records with a wrong `delayline-deliver-at`, or with a number that was not published.
        """
        numbers = np.unique(self["number"])
        own = (numbers >= first) & (numbers < first + published)
        same = self["partition"][1:] == self["partition"][:-1]
        steps = [np.diff(self[name]) for name in ("due_us", "in_partition", "in_offset")]
        descends = (steps[0] < 0) | ((steps[0] == 0) & ((steps[1] < 0) | ((steps[1] == 0) & (steps[2] < 0))))
        return {
            "early": int((self["received_us"] < self["due_us"]).sum()),
            "inversions": int((same & (steps[0] < 0)).sum()),
            "out_of_order": int((same & descends).sum()),
            "lost": published - int(own.sum()),
            "duplicates": len(self["number"]) - len(numbers),
            "altered": int((self["header_ms"] != self["due_us"] // 1000).sum()) + int((~own).sum()),
        }


class Receiver:
    """Runs `main` as a process. A context manager: waits until the process is ready, and ends it."""

    def __init__(
        self,
        bootstrap: str,
        topics: Sequence[str],
        partitions: int,
        count: int,
        timeout_s: float,
        out: Path,
        starts: Sequence[int] | None = None,
    ) -> None:
        """Start the process.

        Args:
            bootstrap: `host:port` of the broker.
            topics: the topics to read.
            partitions: the number of partitions of each.
            count: the number of records to expect.
            timeout_s: the longest time to read.
            out: the file for the columns.
            starts: the offset to start from in each partition, topic by topic; by default 0.
        """
        self._out, self._timeout_s = out, timeout_s
        offsets = ",".join(map(str, starts or [0] * partitions * len(topics)))
        arguments = [bootstrap, ",".join(topics), offsets, str(count), str(timeout_s), str(out)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.receiver", *arguments], stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Receiver:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self._process.kill()
            raise RuntimeError(f"the receiver ended with {self._process.wait()}")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def result(self) -> Received:
        """Wait until the process has all records or its time is over, and return the records."""
        if code := self._process.wait(self._timeout_s + 60):
            raise RuntimeError(f"the receiver ended with {code}")
        return Received.read(self._out)


def receive(
    bootstrap: str, topics: Sequence[str], starts: Sequence[int], count: int, timeout_s: float
) -> list[array[int]]:
    """Read `count` records, or those that arrive within `timeout_s`; return one array for each of `COLUMNS`.

    Args:
        bootstrap: `host:port` of the broker.
        topics: the topics to read.
        starts: the offset to start from in each partition, topic by topic.
        count: the number of records to expect; surplus records within two more seconds are read too.
        timeout_s: the longest time to read.
    """
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "receiver", "isolation.level": "read_committed",
         "enable.auto.commit": False, "fetch.wait.max.ms": 100,
         # Some benchmarks kill the broker on purpose: the client must not log that it is unreachable.
         "log_level": 0}
    )  # fmt: skip
    each = len(starts) // len(topics)
    places = {(topic, number): at * each + number for at, topic in enumerate(topics) for number in range(each)}
    consumer.assign([TopicPartition(*place, starts[at]) for place, at in places.items()])
    columns = [array("q") for _ in COLUMNS]
    print("ready", flush=True)
    deadline, seen = time.monotonic() + timeout_s, 0
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        received_us = time.time_ns() // 1000
        if (error := message.error()) is not None:
            if error.retriable() or error.name() in _TRANSIENT:
                continue
            raise RuntimeError(error)
        row = (
            places[message.topic() or "", message.partition() or 0],
            message.offset(),
            *read_value(message.value() or b""),
            received_us,
            *_headers(message),
        )
        for column, number in zip(columns, row, strict=True):
            column.append(number or 0)
        seen += 1
        if seen == count:
            deadline = time.monotonic() + _GRACE_S
    consumer.close()
    return columns


def _headers(message: Any) -> tuple[int, int, int]:
    """Return the due time (epoch ms), input partition and offset from the service's headers; -1 without headers."""
    headers = dict(message.headers() or [])
    if "delayline-id" not in headers:
        return -1, -1, -1
    _, partition, offset = headers["delayline-id"].rsplit(b"/", 2)
    return int(headers.get("delayline-deliver-at", -1)), int(partition), int(offset)


def main() -> None:
    """Read the topic, and write the columns."""
    bootstrap, topics, offsets, count, timeout_s, out = sys.argv[1:]
    starts = [int(offset) for offset in offsets.split(",")]
    columns = receive(bootstrap, topics.split(","), starts, int(count), float(timeout_s))
    arrays = {name: np.array(column, np.int64) for name, column in zip(COLUMNS, columns, strict=True)}
    np.savez(out, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
