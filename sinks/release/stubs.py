"""The stub that takes the place of a dead letter when the dead-letter topic refuses it."""

from __future__ import annotations

import numpy as np

from sinks.release.records import NO_TIMESTAMP, Record, record_bytes, record_id
from state.dead_letter import SERVICE_HEADERS
from state.stub import MOST_STUB_BYTES, Stub, digest, headers_left, key_left, split_stub


def as_stub(letter: Record) -> Record:
    """Return the stub of a dead letter. A topic can refuse it only by a size limit below `MOST_STUB_BYTES`.

    It has a key, since a compacted topic demands one: the message id if the record has no short key. It has no
    timestamp, since this host's clock may be further ahead than the topic allows.
    """
    before, service = letter.headers[:-SERVICE_HEADERS], letter.headers[-SERVICE_HEADERS:]
    own, stub = split_stub(letter.key, letter.value, before, record_id(letter))
    own = own if stub is None else before
    # The intake may have made a stub of it, with facts that only the intake knows. A larger one only looks like a stub.
    if stub is None or record_bytes(letter) > MOST_STUB_BYTES:
        sizes = np.array([len(name.encode()) + len(value or b"") for name, value in own], dtype=np.int64)
        facts = Stub(
            None if letter.key is None else len(letter.key),
            None if letter.value is None else len(letter.value),
            digest(letter.value),
            len(own),
        )
        own = [header for header, is_left in zip(own, headers_left(sizes), strict=True) if is_left]
        own.append(facts.to_header())
    key = key_left(letter.key)
    key = record_id(letter) if key is None else key
    return Record(NO_TIMESTAMP, letter.topic, letter.partition, key, None, [*own, *service])
