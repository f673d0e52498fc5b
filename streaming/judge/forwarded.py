"""The records that forwarders took: the input records that claims name, and when each was in the near log.

A claim says which records a forwarder takes instead of a batch. The messages lie in the near log, as chunks, which the
same transaction commits. But a chunk may be visible later than its claim: several forwarders write to a partition of
the near log, and one that dies leaves its transaction open there, so that release processes read no further until that
is ended. A message is therefore staged once its chunk can be read, and not when its claim can.
"""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass, field

import pyarrow as pa
from pyroaring import BitMap64

# The id of an input record: its topic, partition and offset.
Source = tuple[str, int, int]

_FORMAT = 1


@dataclass
class Forwarded:
    """The records that forwarders took.

    - `sources`: the records that claims name
    - `seen_ms`: when each of them was seen in the near log, epoch ms. Records that were deleted earlier are missing
    """

    sources: set[Source] = field(default_factory=set)
    seen_ms: dict[Source, int] = field(default_factory=dict)

    def add_claim(self, value: bytes) -> None:
        """Add a record of a lane in the claims topic. Raises ValueError for another format."""
        claim = json.loads(value)
        if claim["format"] != _FORMAT:
            raise ValueError(f"the judge reads claims of format {_FORMAT}, and not {claim['format']}")
        for topic, bitmaps in claim["taken"].items():
            for partition, text in bitmaps.items():
                offsets = BitMap64.deserialize(base64.b64decode(text))
                self.sources.update((topic, int(partition), offset) for offset in offsets)

    def add_chunk(self, value: bytes, at_ms: int) -> None:
        """Add a record of the near log, an Arrow stream of messages, that was seen there at `at_ms` (epoch ms)."""
        with pa.ipc.open_stream(io.BytesIO(value)) as stream:
            columns = stream.read_all().select(["topic", "partition", "offset"])
        for source in zip(*(column.to_pylist() for column in columns.columns), strict=True):
            self.seen_ms.setdefault(source, at_ms)
