"""Measures one structure of message ids under one load in a separate process: its memory, or its times."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.index_rivals import Heap, TimeBucket
from state.index.message_index import MessageIndex

INDEX, TIME_BUCKET, PLAIN, HEAP = "index", "TimeBucket", "TimeBucket, no runs", "heap"
CONSECUTIVE, SHUFFLED, PARTITIONS, SPARSE = "consecutive", "shuffled", "2 partitions", "1 in 100 waits"
SEGMENT_IDS = 50_000
FIRST_DUE_MS = 1_800_000_000_000
_DRAIN_STEPS = 100
_MEASURED_S = 0.3
_TIMEOUT_S = 1200.0

_Part = tuple[str, int, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One case: `messages_per_ms` messages are due in each ms; `precision_bits` low bits of due times are dropped."""

    structure: str
    load: str
    messages_per_ms: int
    precision_bits: int
    messages: int

    @property
    def span_ms(self) -> int:
        """The time from the first to the last due time."""
        return self.messages // self.messages_per_ms


def run(case: Case, what: str) -> dict[str, float]:
    """Measure "memory" or "times" (`what`) of `case` in a new process."""
    command = [sys.executable, "-m", "benchmarks.index_case", what, json.dumps(asdict(case))]
    # With this setting malloc counts all objects; by default Python takes small objects from separate pools.
    environment = {**os.environ, "PYTHONMALLOC": "malloc"} if what == "memory" else None
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_S, check=True, env=environment
    )  # fmt: skip
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure the case of the arguments; print the figures as JSON."""
    what, case = sys.argv[1], Case(**json.loads(sys.argv[2]))
    print(json.dumps(_memory(case) if what == "memory" else _times(case)))


def _memory(case: Case) -> dict[str, float]:
    """Return the bytes of memory that the structure uses, and the bytes of its content when serialized."""
    # Fill a small one first: objects that are created once, at first use, must not count.
    small = _filled(Case(case.structure, case.load, 1, case.precision_bits, 2 * SEGMENT_IDS))
    assert small.nbytes
    del small
    before = _in_use()
    structure = _filled(case)
    memory = _in_use() - before
    return {"memory_bytes": memory, "content_bytes": structure.nbytes}


def _times(case: Case) -> dict[str, float]:
    """Return CPU times, which other processes on the machine do not influence."""
    structure, add_s, random = _structure(case), 0.0, np.random.default_rng(2)
    known: list[tuple[str, int, int]] = []
    for topic, partition, offsets, deliver_at_ms in _parts(case):
        begun = time.process_time()
        structure.add(topic, partition, offsets, deliver_at_ms)
        add_s += time.process_time() - begun
        known += [(topic, partition, offset) for offset in random.choice(offsets, 50).tolist()]
    begun = time.process_time()
    _complete(structure, case)
    add_s += time.process_time() - begun
    random.shuffle(known)
    ends = np.sort(random.integers(0, case.span_ms, (10_000, 2)) + FIRST_DUE_MS, axis=1).tolist()
    figures = {
        "add_ns": add_s / case.messages * 1e9,
        "contains_us": _per_call_us(lambda message_id: message_id in structure, known),
        "count_us": _per_call_us(lambda range_ms: structure.between(*range_ms), ends),
        "next_due_us": _per_call_us(lambda _: structure.next_due(), ends),
    }
    last_ms = FIRST_DUE_MS + case.span_ms

    def add_one_and_count(number: int) -> None:
        structure.add("in", 0, np.array([10**9 + number]), np.array([last_ms]))
        structure.between(FIRST_DUE_MS, last_ms)

    figures["add_one_and_count_us"] = _per_call_us(add_one_and_count, range(10_000))
    begun, waiting = time.process_time(), len(structure)
    for cutoff_ms in np.linspace(FIRST_DUE_MS, last_ms + (2 << case.precision_bits), _DRAIN_STEPS).astype(int).tolist():
        structure.forget_before(cutoff_ms)
    figures["drain_ns"] = (time.process_time() - begun) / waiting * 1e9
    assert not len(structure)
    return figures


def _per_call_us(call: Callable[[Any], object], arguments: Iterable[Any]) -> float:
    """Return the mean time of a call: calls for `_MEASURED_S`, after a first one that does not count."""
    calls, begun, spent = -1, 0.0, 0.0
    for argument in arguments:
        call(argument)
        calls += 1
        if calls == 0:
            begun = time.process_time()
        spent = time.process_time() - begun
        if calls and spent > _MEASURED_S:
            break
    return spent / calls * 1e6


def _filled(case: Case) -> Any:
    structure = _structure(case)
    for part in _parts(case):
        structure.add(*part)
    _complete(structure, case)
    return structure


def _complete(structure: Any, case: Case) -> None:
    """Do the work that a structure leaves until all ids are added, and check its count."""
    if case.structure == TIME_BUCKET:
        structure.optimise()
    assert len(structure) == case.messages


def _structure(case: Case) -> Any:
    if case.structure == HEAP:
        return Heap()
    if case.structure == INDEX:
        return MessageIndex(case.precision_bits)
    return TimeBucket(case.precision_bits)


def _parts(case: Case) -> Iterator[_Part]:
    """Yield the load in parts of `SEGMENT_IDS` ids of one source."""
    random = np.random.default_rng(1)
    numbers = np.arange(SEGMENT_IDS)
    for part in range(case.messages // SEGMENT_IDS):
        if case.load in (CONSECUTIVE, SHUFFLED):
            # The layout of Pulsar's table: each segment is a separate source (a ledger) with offsets from 0.
            partition, offsets = part, numbers
        else:
            partition, offsets = part % 2, numbers + part // 2 * SEGMENT_IDS
        if case.load == SPARSE:
            offsets = offsets * 100 + random.integers(0, 100, SEGMENT_IDS)
        if case.load == CONSECUTIVE:
            due_ms = (numbers + part * SEGMENT_IDS) // case.messages_per_ms
        else:
            due_ms = random.integers(0, case.span_ms, SEGMENT_IDS)
        yield "in", partition, offsets, due_ms + FIRST_DUE_MS


_MALLINFO = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLINFO.split())


def _in_use() -> int:
    """Return the bytes that malloc has allocated (glibc 2.33 or newer)."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _MallInfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


if __name__ == "__main__":
    main()
