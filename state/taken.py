"""The records of a batch that forwarders have taken (`state.claims`), in the form in which its tasks get them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap64


@dataclass(frozen=True)
class Taken:
    """The offsets of the taken records, by topic and partition."""

    offsets: Mapping[tuple[str, int], BitMap64] = field(default_factory=dict)

    def of_topic(self, topic: str) -> dict[str, BitMap64]:
        """Return the offsets of a topic by partition, as text."""
        return {str(number): offsets for (own, number), offsets in self.offsets.items() if own == topic}

    def to_text(self) -> str:
        """Return it as text."""
        own = (
            [topic, partition, base64.b64encode(offsets.serialize()).decode()]
            for (topic, partition), offsets in self.offsets.items()
        )
        return json.dumps(list(own))

    @staticmethod
    def from_text(text: str) -> Taken:
        """Read what `to_text` wrote."""
        stored = json.loads(text)
        return Taken({(topic, number): BitMap64.deserialize(base64.b64decode(own)) for topic, number, own in stored})


NONE_TAKEN = Taken()
