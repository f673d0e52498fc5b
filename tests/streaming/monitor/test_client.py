"""Asking a process that may be another one, or another server."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler

import pytest

from streaming.monitor.client import NoAnswer, ask
from tests.http_answers import answering, say


@pytest.mark.parametrize("length", ["1000", "100000", None])
def test_an_endless_answer_is_read_only_up_to_the_limit(length: str | None) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        if length is not None:
            request.send_header("Content-Length", length)
        request.end_headers()
        request.wfile.write(b"a" * int(length or 1000))

    with answering(answer) as address, pytest.raises(NoAnswer, match="more than 999 bytes"):
        ask(address, "/status", most_bytes=999)


def test_an_answer_that_ends_early_is_none() -> None:
    with answering(lambda request: say(request, 200, b"[]", Content_Length="3")) as address:  # noqa: SIM117
        with pytest.raises(NoAnswer, match="is cut off"):
            ask(address, "/problems")


@pytest.mark.parametrize("size", [0, 1, 999])
def test_an_answer_up_to_the_limit_is_whole(size: int) -> None:
    with answering(lambda request: say(request, 503, b"a" * size)) as address:
        answer = ask(address, "/status", most_bytes=999)
    assert (answer.code, answer.body, answer.application_id) == (503, b"a" * size, None)
