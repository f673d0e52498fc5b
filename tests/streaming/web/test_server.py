"""The page's doors: who gets what, and which requests are refused in words. No job runs behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.streaming.web.site import Site, site

_TOKEN = "a-token-of-24-characters"
_ACTIONS = ("/api/selections", *(f"/api/selections/x/{each}" for each in ("cancel", "deliver-now", "postpone")))


@pytest.fixture(scope="module")
def open_site() -> Iterator[Site]:
    with site() as found:
        yield found


@pytest.fixture(scope="module")
def guarded_site() -> Iterator[Site]:
    with site(f"web.token={_TOKEN}") as found:
        yield found


@pytest.mark.parametrize(
    ("path", "kind", "part"),
    [
        ("/", "text/html", b"What is due when"),
        ("/static/page.js", "text/javascript", b"use strict"),
        ("/static/page.css", "text/css", b".chart"),
        ("/charts.js", "text/javascript", b"plotly.js v"),
    ],
)
def test_the_page_comes_with_all_it_needs_and_forbids_all_else(
    open_site: Site, path: str, kind: str, part: bytes
) -> None:
    status, headers, body = open_site.ask("GET", path)
    assert (status, headers["content-type"].partition(";")[0]) == (200, kind)
    assert part in body
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "script-src" not in policy, "scripts follow the default: our own alone"
    assert b"http://" not in body.replace(b"http://www.w3.org", b"") or path == "/charts.js"


def test_without_a_job_the_page_says_so(open_site: Site) -> None:
    status, _, body = open_site.ask("GET", "/api/now")
    known = json.loads(body)
    assert status == 200
    assert (known["status"], known["samples"], known["actions"]) == (None, [], False)
    assert known["job"] == "127.0.0.1:1"


@pytest.mark.parametrize("path", _ACTIONS)
def test_without_a_token_in_the_settings_there_are_no_actions(open_site: Site, path: str) -> None:
    status, error = open_site.refusal(path, authorization="Bearer ")
    assert (status, error) == (403, "actions are disabled without web.token. Set web.token")


@pytest.mark.parametrize("path", [*_ACTIONS, "/api/messages"])
@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", f"Basic {_TOKEN}", f"Bearer {_TOKEN}x"])
def test_messages_and_actions_need_the_token(guarded_site: Site, path: str, given: str) -> None:
    headers = {"authorization": given} if given else {}
    assert guarded_site.refusal(path, None, **headers) == (401, "enter the token of web.token")


@pytest.mark.parametrize("host", ["delayline.example:9466", "127.0.0.1.example", "192.168.1.7:9466", ""])
def test_without_a_token_messages_are_for_a_browser_on_this_host(open_site: Site, host: str) -> None:
    status, error = open_site.refusal("/api/messages", host=host)
    assert (status, "on this host only" in error) == (403, True)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{", "bad-usage: the body is not JSON"),
        (b"[]", "bad-usage: the body must be an object with some of due_from, due_until"),
        (b"\xff", "bad-usage: the body is not JSON"),
        ({"limits": 3}, "bad-usage: the body must be an object with some of due_from, due_until"),
        ({"limit": 0}, "bad-usage: limit: allowed is 1 to 500"),
        ({"limit": 501}, "bad-usage: limit: allowed is 1 to 500"),
        ({"limit": True}, "bad-usage: limit: allowed is 1 to 500"),
        ({"limit": "5"}, "bad-usage: limit: allowed is 1 to 500"),
        ({"ids": "in/0/1"}, "bad-usage: ids: allowed is a list of message ids"),
        ({"ids": [1]}, "bad-usage: ids: allowed is a list of message ids"),
        ({"ids": ["in/0"]}, "bad-usage: 'in/0': "),
        ({"ids": ["other/0/1"]}, "bad-usage: 'other/0/1': other is not in topics.input (in)"),
        ({"key": 3}, "bad-usage: key: allowed is text"),
        ({"key": "\ud800"}, "bad-usage: key: allowed is Unicode text"),
        ({"due_from": "tomorrow"}, "bad-usage: due_from: 'tomorrow': write epoch ms"),
        ({"due_from": "1798135200"}, "bad-usage: due_from: '1798135200' is seconds by its size"),
        ({"due_until": "1798135200000000"}, "bad-usage: due_until: '1798135200000000' is microseconds by its size"),
        ({"due_until": "999999999999999999w"}, "bad-usage: due_until: '999999999999999999w' is too long"),
        ({"due_from": "2h", "due_until": "1h"}, "bad-usage: due_until: the range from due_from is empty"),
    ],
)
def test_a_wrong_question_is_refused_in_words(open_site: Site, body: bytes | dict[str, Any], error: str) -> None:
    status, said = open_site.refusal("/api/messages", body)
    assert status == 400
    assert said.startswith(error), said


def test_a_form_of_another_site_asks_nothing(open_site: Site) -> None:
    status, error = open_site.refusal("/api/messages", content_type="text/plain")
    assert (status, error) == (415, "the body must be application/json")


@pytest.mark.parametrize("name", ["forwarded", "via", "x_forwarded_for", "x_forwarded_host", "x_real_ip"])
def test_without_a_token_a_proxy_gets_no_messages(open_site: Site, name: str) -> None:
    status, error = open_site.refusal("/api/messages", None, **{name: "10.0.0.1"})
    assert (status, "through a proxy" in error) == (403, True)


@pytest.mark.parametrize("since", ["-1", "x", "9" * 5_000, "1.5"])
def test_a_wrong_instant_is_refused(open_site: Site, since: str) -> None:
    assert open_site.ask("GET", f"/api/now?since={since}")[0] == 400


def test_a_huge_question_is_refused(open_site: Site) -> None:
    assert open_site.refusal("/api/messages", b" " * 200_000) == (413, "the body must have at most 100,000 bytes")


@pytest.mark.parametrize(
    ("action", "body", "error"),
    [
        ("cancel", {}, "bad-usage: operator: give your name"),
        ("cancel", {"operator": "a" * 201}, "bad-usage: operator: give your name"),
        ("cancel", {"operator": "a\nb"}, "bad-usage: operator: give your name"),
        ("cancel", {"operator": "Ada"}, "bad-usage: the selection no longer exists. Count again"),
        ("deliver-now", {}, "bad-usage: operator: give your name"),
        ("deliver-now", {"operator": "Ada"}, "bad-usage: the selection no longer exists. Count again"),
        ("postpone", {"operator": "Ada"}, "bad-usage: by: "),
        ("postpone", {"operator": "Ada", "by": "-1h"}, "bad-usage: by: "),
        ("postpone", {"operator": "Ada", "by": "0s"}, "bad-usage: by: allowed is a duration longer than 0"),
        ("postpone", {"operator": "Ada", "by": "1h"}, "bad-usage: the selection no longer exists. Count again"),
    ],
)
def test_a_wrong_action_is_refused_in_words(guarded_site: Site, action: str, body: dict[str, Any], error: str) -> None:
    path = f"/api/selections/none/{action}"
    status, said = guarded_site.refusal(path, body, authorization=f"Bearer {_TOKEN}")
    assert status == 400
    assert said.startswith(error), said


@pytest.mark.parametrize(("method", "path"), [("GET", "/api/selections"), ("PUT", "/"), ("POST", "/api/now")])
def test_another_method_is_not_allowed(guarded_site: Site, method: str, path: str) -> None:
    assert guarded_site.ask(method, path)[0] == 405


@pytest.mark.parametrize("path", ["/nothing", "/static/../server.py", "/static/%2e%2e/server.py"])
def test_nothing_else_is_served(open_site: Site, path: str) -> None:
    assert open_site.ask("GET", path)[0] == 404
