"""The checks of a mirror before Ivy runs. Servers on loopback stand for it, and for the targets of its redirects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler

import pytest

from conf.errors import JarsMissing
from conf.java.jars.mirror import ivy_settings
from tests.http_answers import answering, say


class Site:
    """Servers on loopback. `logins` has what requests for each path said of their login."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.logins: dict[str, list[str | None]] = {}

    def serve(self, answer: Callable[[BaseHTTPRequestHandler], None]) -> str:
        """Let a new server answer like this, and return its address."""

        def noted(request: BaseHTTPRequestHandler) -> None:
            self.logins.setdefault(request.path.split("/")[1], []).append(request.headers.get("Authorization"))
            answer(request)

        return self._stack.enter_context(answering(noted))


@pytest.fixture
def site() -> Iterator[Site]:
    """A site without servers."""
    with ExitStack() as stack:
        yield Site(stack)


def has_it(request: BaseHTTPRequestHandler) -> None:
    say(request, 200)


def redirecting(to: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """Answer as a mirror that wants a login, and has its files at `to`, which may be another path of its own."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        if request.headers.get("Authorization") is None:
            say(request, 401, WWW_Authenticate='Basic realm="Repository"')
        elif request.path.startswith("/stored/"):
            say(request, 200)
        else:
            say(request, 302, Location=f"{to}/stored{request.path}")

    return answer


def test_a_server_to_which_the_mirror_redirects_does_not_get_the_login(site: Site) -> None:
    mirror = site.serve(redirecting(f"http://{site.serve(has_it)}"))
    assert 'realm="Repository"' in ivy_settings(f"http://someone:p4ssword@{mirror}/repository/", "broker")
    assert [login is not None for login in site.logins["repository"]] == [False, True]
    assert site.logins["stored"] == [None]


def test_the_mirror_itself_gets_the_login_after_a_redirect_too(site: Site) -> None:
    mirror = site.serve(redirecting(""))
    assert 'realm="Repository"' in ivy_settings(f"http://someone:p4ssword@{mirror}/repository/", "broker")
    assert site.logins["stored"] == [site.logins["repository"][1]]


@pytest.mark.parametrize("to", ["http://[", "http://host:port/"])
def test_a_redirect_to_what_is_no_url_is_for_ivy_to_tell(site: Site, to: str) -> None:
    mirror = site.serve(lambda request: say(request, 302, Location=to))
    assert 'realm=""' in ivy_settings(f"http://{mirror}/", "broker")


def test_an_answer_that_is_no_http_is_for_ivy_to_tell(site: Site) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"SSH-2.0-server\r\n")

    mirror = site.serve(answer)
    assert 'realm=""' in ivy_settings(f"http://{mirror}/", "broker")


def test_a_mirror_that_refuses_the_login_is_named(site: Site) -> None:
    mirror = site.serve(lambda request: say(request, 401, WWW_Authenticate='Basic realm="Repository"'))
    with pytest.raises(JarsMissing, match=f"the mirror http://{mirror}/ refuses this login"):
        ivy_settings(f"http://someone:wrong@{mirror}/", "broker")
