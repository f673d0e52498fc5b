"""A stub: the dead letter that stands for a record which no topic takes whole, written and read.

It has no value, and key and headers of limited size. Its header `STUB_HEADER` says what the record has. The record
itself is in its input topic, at its message id, as long as that topic keeps it.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from state.checkpoint.stored_json import STORED, read_stored

STUB_HEADER = "delayline-stub"
# What a header takes beside its name and value, so that the number of headers is limited as well.
HEADER_BYTES = 8
# The most bytes of a stub as a record. Key and headers take most of it, then the error's sentence.
MOST_STUB_BYTES = 8_192
_MOST_KEY_BYTES = 1_024
_MOST_HEADER_BYTES, _MOST_HEADERS_BYTES = 512, 4_096


@dataclass(frozen=True, config=STORED)
class Stub:
    """What the record has: the bytes of its key and value, the value's SHA-256 (hex), and the number of its headers.

    Of a key or a value that is null, they are null.
    """

    key_bytes: int | None
    value_bytes: int | None
    value_sha256: str | None
    headers: int

    def to_header(self) -> tuple[str, bytes]:
        """Return the header of a stub. It comes after the headers that are left, and before the service's others."""
        return STUB_HEADER, _STUB.dump_json(self)


_STUB = TypeAdapter(Stub)


def read_stub(value: bytes | None) -> Stub | None:
    """Read the value of the header `STUB_HEADER`; None for a value that `Stub.to_header` did not write."""
    try:
        return read_stored(_STUB, value or b"")
    except ValueError:
        return None


def digest(value: bytes | memoryview | None) -> str | None:
    """Return the SHA-256 of a value, in hexadecimal digits."""
    return None if value is None else hashlib.sha256(value).hexdigest()


def key_left(key: bytes | None) -> bytes | None:
    """Return the key of a stub: the record's, or none if that is too long."""
    return key if key is None or len(key) <= _MOST_KEY_BYTES else None


def headers_left(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which headers of a record stay on its stub: the first ones of those that are short.

    `sizes` has the bytes of name and value of each header.
    """
    each = sizes + HEADER_BYTES
    is_short = each <= _MOST_HEADER_BYTES
    return np.asarray(is_short & (np.cumsum(np.where(is_short, each, 0)) <= _MOST_HEADERS_BYTES))
