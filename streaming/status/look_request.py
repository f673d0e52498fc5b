"""A look at waiting messages as a client asks the running job for it: JSON, and its answer, an Arrow IPC stream.

A request names the application and its storage: another job may have the address.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Annotated

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from state.message_ids import MOST_TOPIC_CHARACTERS
from streaming.status.look import Look
from streaming.status.waiting_rows import ROW_SCHEMA

# The most rows that the job answers with: a selection of the page, and one more to see that more messages exist.
MOST_ROWS = 10_001
ARROW_STREAM = "application/vnd.apache.arrow.stream"
_INT64 = 2**63 - 1
_Instant = Annotated[int, Field(ge=-_INT64, le=_INT64)]
_Topic = Annotated[str, Field(min_length=1, max_length=MOST_TOPIC_CHARACTERS)]
_Id = tuple[_Topic, Annotated[int, Field(ge=0, lt=2**31)], Annotated[int, Field(ge=0, le=_INT64)]]


class LookRequest(BaseModel):
    """A `Look` at the waiting messages of the application `application_id` with `storage.path` = `storage`.

    `key` is base64.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    application_id: str
    storage: str
    from_ms: _Instant | None = None
    until_ms: _Instant | None = None
    ids: Annotated[tuple[_Id, ...], Field(max_length=MOST_ROWS)] | None = None
    key: str | None = None
    topic: _Topic | None = None
    newest: bool = False
    limit: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    shown_bytes: Annotated[int, Field(ge=0, le=_INT64)] | None = None

    @field_validator("key")
    @classmethod
    def _is_base64(cls, key: str | None) -> str | None:
        if key is not None:
            b64decode(key, validate=True)
        return key

    def wanted(self) -> Look:
        """Return the look that is asked for."""
        fields = {name: value for name, value in vars(self).items() if name not in ("application_id", "storage")}
        return Look(**fields | {"key": None if self.key is None else b64decode(self.key)})


def encoded_request(wanted: Look, application_id: str, storage: str) -> bytes:
    """Return the JSON of a request. Raises ValueError if it asks for more than a job answers."""
    key = None if wanted.key is None else b64encode(wanted.key).decode()
    fields = {**vars(wanted), "key": key, "application_id": application_id, "storage": storage}
    return _checked(lambda: LookRequest.model_validate(fields)).model_dump_json().encode()


def decoded_request(body: bytes) -> LookRequest:
    """Return the request that `body` is. Raises ValueError, with a sentence, if it is not a request."""
    return _checked(lambda: LookRequest.model_validate_json(body, strict=True))


def _checked(request: Callable[[], LookRequest]) -> LookRequest:
    try:
        return request()
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise ValueError(f"{field}: {first['msg']}" if field else first["msg"]) from None


def encoded_rows(rows: pa.Table) -> bytes:
    """Return rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


def decoded_rows(stream: bytes) -> pa.Table:
    """Return the rows of an Arrow IPC stream. Raises ValueError, also for rows of another version of Delayline."""
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        rows = reader.read_all()
    if rows.schema != ROW_SCHEMA:
        raise ValueError("the job has another version than this command")
    return rows
