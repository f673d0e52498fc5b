"""How far a partition of the dead-letter topic is resent, as Kafka stores it for a group: an offset and a text."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass, field

from pyroaring import BitMap

from conf.errors import PositionInvalid

# The default of the broker's offset.metadata.max.bytes, which limits the text.
MAX_TEXT_BYTES = 4096


@dataclass
class ResendPosition:
    """The letters below `offset` and the letters in `done` are done; all others are still to be resent.

    Letters can be chosen by their error, so letters that are still to be resent may lie between done ones.
    """

    offset: int = 0
    done: set[int] = field(default_factory=set)

    def is_done(self, offset: int) -> bool:
        """Return whether the letter at `offset` has been resent, or skipped for good."""
        return offset < self.offset or offset in self.done

    def advanced(self, done: set[int], left: set[int], read_to: int) -> ResendPosition:
        """Return the position after reading up to `read_to`, when `done` are done as well and `left` are not."""
        offset = max(self.offset, min(left, default=read_to))
        return ResendPosition(offset, {each for each in self.done | done if each >= offset})

    def to_text(self) -> str:
        """Return `done` as text. Raises PositionInvalid if it is longer than Kafka stores."""
        if not self.done:
            return ""
        bits = BitMap(each - self.offset for each in self.done)
        bits.run_optimize()
        text = b64encode(zlib.compress(bits.serialize(), 9)).decode()
        if len(text) > MAX_TEXT_BYTES:
            raise PositionInvalid(
                f"{len(self.done)} resent dead letters after offset {self.offset} are too scattered: their "
                f"position takes {len(text)} bytes, and Kafka stores {MAX_TEXT_BYTES}. Resend the dead "
                "letters between them as well, or skip those with --skip-rest"
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
            raise PositionInvalid(
                f"offset {offset} was committed with the text {text[:40]!r}, which `delayline resend` did not write"
            ) from problem
        return ResendPosition(offset, {offset + each for each in bits})
