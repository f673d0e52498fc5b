"""The answer of the job's server to `POST /messages`: waiting messages, for a client that may see them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from io import BufferedIOBase

from streaming.monitor.access import AccessRefused, RequestHeaders, check_may_look

LOOK_PATH = "/messages"
# More than 10,000 ids of usual topics.
_MOST_BODY_BYTES = 1_000_000


@dataclass(frozen=True)
class Reply:
    """An answer: its status, its body, and the body's type."""

    status: HTTPStatus
    body: bytes
    content_type: str = "application/json"


def refusal(status: HTTPStatus, why: str) -> Reply:
    """Return the answer that refuses a request, with a sentence."""
    return Reply(status, json.dumps({"error": why}).encode() + b"\n")


@dataclass(frozen=True)
class LookDoor:
    """Lets requests for messages through to `answer`, which takes the body of one.

    `token` is `web.token`.
    """

    token: str
    answer: Callable[[bytes], Reply]

    def reply(self, headers: RequestHeaders, client: str, body: BufferedIOBase) -> Reply:
        """Return the answer to a request from the IP address `client`. Raises OSError if the client sends no more."""
        try:
            check_may_look(self.token, headers, client)
        except AccessRefused as refused:
            return refusal(refused.status, str(refused))
        # A form of another site cannot send this type unasked.
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdecimal()):
            return refusal(HTTPStatus.LENGTH_REQUIRED, "the request must have a Content-Length")
        if len(length) > len(str(_MOST_BODY_BYTES)) or int(length) > _MOST_BODY_BYTES:
            why = f"the body must have at most {_MOST_BODY_BYTES:,} bytes"
            return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)
        return self.answer(body.read(int(length)))
