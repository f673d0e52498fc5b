"""A stub: the dead letter that stands for a record which no topic takes whole, written and read.

It has no value, and key and headers of limited size. Its header `STUB_HEADER` describes the record. The record itself
is in its input topic, at its message id, as long as that topic keeps it.

A publisher may set that header too. Where this would make a whole dead letter look like a stub, the service writes
another one after it, without a value (`WHOLE`). So if this header stands right before the service's other headers, the
service has written it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from state.checkpoint.stored_json import STORED, read_stored
from state.dead_letter import Headers

STUB_HEADER = "delayline-stub"
# The mark of a whole dead letter.
WHOLE: tuple[str, bytes | None] = (STUB_HEADER, None)
# The bytes that a header takes in addition to its name and value, so that the number of headers is limited as well.
HEADER_BYTES = 8
# The most bytes of a stub as a record. Key and headers take most of it, then the error's sentence.
MOST_STUB_BYTES = 8_192
_MOST_KEY_BYTES = 1_024
_MOST_HEADER_BYTES, _MOST_HEADERS_BYTES = 512, 4_096
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, config=STORED)
class Stub:
    """The record's data: the bytes of its key and value, the value's SHA-256 (hex), and the number of its headers.

    For a null key or value, its fields are null.
    """

    key_bytes: int | None
    value_bytes: int | None
    value_sha256: str | None
    headers: int

    def to_header(self) -> tuple[str, bytes]:
        """Return the header of a stub. It comes after the headers that are left, and before the service's others."""
        return STUB_HEADER, _STUB.dump_json(self)

    def is_of(self, key: bytes | None, headers: int, identity: bytes) -> bool:
        """Return whether the stub of such a record, with this message id, may have this key and so many headers."""
        if self.key_bytes is None or self.key_bytes > _MOST_KEY_BYTES:
            has_its_key = key is None or key == identity
        else:
            has_its_key = key is not None and len(key) == self.key_bytes
        has_digest = self.value_sha256 is not None and _SHA256.fullmatch(self.value_sha256) is not None
        has_its_value = has_digest if self.value_bytes is not None else self.value_sha256 is None
        return has_its_key and has_its_value and headers <= self.headers


_STUB = TypeAdapter(Stub)


def read_stub(value: bytes | None) -> Stub | None:
    """Read the value of the header `STUB_HEADER`; None for a value that `Stub.to_header` did not write."""
    try:
        return read_stored(_STUB, value or b"")
    except ValueError:
        return None


def mark_of_whole(value: bytes | None, own: Sequence[tuple[str, bytes | None]]) -> Headers:
    """Return the headers after `own` of a whole dead letter: the mark, if it would look like a stub otherwise."""
    return [WHOLE] if value is None and own and own[-1][0] == STUB_HEADER else []


def split_stub(key: bytes | None, value: bytes | None, before: Headers, identity: bytes) -> tuple[Headers, Stub | None]:
    """Return a dead letter's own headers, and the stub if it is one.

    Args:
        key: the dead letter's key
        value: its value
        before: its headers before the service's headers
        identity: its message id
    """
    if value is not None or not before or before[-1][0] != STUB_HEADER:
        return before, None
    own, last = before[:-1], before[-1]
    if last == WHOLE and mark_of_whole(value, own):
        return own, None
    stub = read_stub(last[1])
    # Versions before the mark did not write it. A header that contradicts the record was written by the publisher.
    if stub is None or not stub.is_of(key, len(own), identity):
        return before, None
    return own, stub


def digest(value: bytes | memoryview | None) -> str | None:
    """Return the SHA-256 of a value, in hexadecimal digits."""
    return None if value is None else hashlib.sha256(value).hexdigest()


def key_left(key: bytes | None) -> bytes | None:
    """Return the key of a stub: the record's key, or None if that is too long."""
    return key if key is None or len(key) <= _MOST_KEY_BYTES else None


def headers_left(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which headers of a record stay on its stub: the first of its short headers.

    `sizes` has the bytes of name and value of each header.
    """
    each = sizes + HEADER_BYTES
    is_short = each <= _MOST_HEADER_BYTES
    return np.asarray(is_short & (np.cumsum(np.where(is_short, each, 0)) <= _MOST_HEADERS_BYTES))
