"""Values that are stored as JSON: how their fields are declared, and how they are read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from conf.errors import CheckpointMismatch, FormatMismatch

Value = TypeVar("Value")

# Reading accepts exactly the types that were written, and no other keys.
STORED = ConfigDict(strict=True, extra="forbid")
_KEY = "format"
# How many bytes of an unexpected value an error shows.
_SHOWN_BYTES = 80


def read_stored(adapter: TypeAdapter[Value], text: str | bytes) -> Value:
    """Read a value that `adapter` has written. Raises ValueError, on one line, with the first field that is wrong."""
    try:
        return adapter.validate_json(text)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        # `from None`: pydantic's own text has several lines, with the values.
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None


@dataclass(frozen=True)
class RecordFormat(Generic[Value]):
    """The format of the records of one kind in an internal topic: JSON objects with a format number.

    - `adapter`: reads and writes the values
    - `name`: the name of such a record in errors
    - `number`: the format number. Raise it with every change after which an earlier Delayline would misread a record
    """

    adapter: TypeAdapter[Value]
    name: str
    number: int = 1

    @cached_property
    def _beginning(self) -> bytes:
        return b'{"%s":%d,' % (_KEY.encode(), self.number)

    def dump(self, value: Value) -> bytes:
        """Return the JSON of `value`, with the format number."""
        return self._beginning + self.adapter.dump_json(value).removeprefix(b"{")

    def read(self, text: str | bytes) -> Value:
        """Read what `dump` returned. Raises FormatMismatch for another format, and ValueError for anything else."""
        # A start may read millions of records. All else that may be in them is read twice, for the error.
        if isinstance(text, bytes) and text.startswith(self._beginning):
            return read_stored(self.adapter, b"{" + text.removeprefix(self._beginning))
        try:
            fields = json.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if not isinstance(fields, dict) or _KEY not in fields:
            raise ValueError("it has no format number")
        if (number := fields.pop(_KEY)) != self.number:
            raise FormatMismatch(
                f"{self.name} has format {number!r}, but this Delayline reads format {self.number}. Run the "
                "version that wrote it"
            )
        return read_stored(self.adapter, json.dumps(fields))

    def read_of(self, topic: str, what: str, value: bytes) -> Value:
        """Read the value of a record of an internal topic, which only the service may write to.

        `topic` and `what`, the expected record, are for errors. Raises CheckpointMismatch for another one, and
        FormatMismatch.
        """
        try:
            return self.read(value)
        except ValueError as problem:
            raise CheckpointMismatch(
                f"the {topic} topic holds {value[:_SHOWN_BYTES]!r}, which is not {what} of this Delayline "
                "version. Only Delayline may write to this topic"
            ) from problem
