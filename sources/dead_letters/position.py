"""How far a partition of the dead-letter topic is resent, as Kafka keeps it with a group: an offset and a text."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass, field

from pyroaring import BitMap

from conf.errors import PositionInvalid

# The least that a broker keeps with an offset, by its offset.metadata.max.bytes.
MAX_TEXT_BYTES = 4096


@dataclass
class ResendPosition:
    """All below `offset` is done with, and behind it what `done` has. What is neither is still to be resent.

    Letters are chosen by their error, so that what is left may lie between what is done.
    """

    offset: int = 0
    done: set[int] = field(default_factory=set)

    def is_done(self, offset: int) -> bool:
        """Say whether the letter at `offset` has been resent, or passed over for good."""
        return offset < self.offset or offset in self.done

    def advanced(self, done: set[int], left: set[int], read_to: int) -> ResendPosition:
        """Return the position after reading up to `read_to`, with `done` done in addition and all of `left` left."""
        offset = max(self.offset, min(left, default=read_to))
        return ResendPosition(offset, {each for each in self.done | done if each >= offset})

    def to_text(self) -> str:
        """Write `done` as text. Raises PositionInvalid if Kafka would not keep so much."""
        if not self.done:
            return ""
        bits = BitMap(each - self.offset for each in self.done)
        bits.run_optimize()
        text = b64encode(zlib.compress(bits.serialize(), 9)).decode()
        if len(text) > MAX_TEXT_BYTES:
            raise PositionInvalid(
                f"{len(self.done)} resent letters lie too scattered behind offset {self.offset} for Kafka to remember "
                f"them ({len(text)} bytes, {MAX_TEXT_BYTES} are kept): resend what lies before them as well, or pass "
                "over it with --skip-rest"
            )
        return text

    @staticmethod
    def from_text(offset: int, text: str) -> ResendPosition:
        """Read what `to_text` wrote. Raises PositionInvalid for anything else."""
        if not text:
            return ResendPosition(offset)
        try:
            bits = BitMap.deserialize(zlib.decompress(b64decode(text, validate=True)))
        except (ValueError, IndexError, zlib.error) as problem:
            raise PositionInvalid(f"offset {offset} has {text[:40]!r} beside it, which no resend wrote") from problem
        return ResendPosition(offset, {offset + each for each in bits})
