"""Values that are stored as JSON: how their fields are declared, and how they are read back."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

Value = TypeVar("Value")

# Reading accepts exactly the types that were written, and no other keys.
STORED = ConfigDict(strict=True, extra="forbid", populate_by_name=True)


def stored_as(name: str) -> Any:
    """Declare a field whose stored JSON key is `name`: stored keys stay the same when a field is renamed."""
    return Field(validation_alias=name, serialization_alias=name)


def read_stored(adapter: TypeAdapter[Value], text: str | bytes) -> Value:
    """Read a value that `adapter` has written. Raises ValueError, on one line, with the first field that is wrong."""
    try:
        return adapter.validate_json(text)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        # `from None`: pydantic's own text has several lines, with the values.
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None
