"""What the page does in a real browser when a person types and clicks. No job runs behind it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from streaming.web import server
from streaming.web.selections import Selection
from tests.browser import Page, chromium
from tests.eventually import assert_eventually
from tests.streaming.web.test_server import site

_TOKEN = "a-token-of-24-characters"
_STATIC = Path(server.__file__).parent / "static"


class _Messages:
    """Three messages wait, whatever is asked."""

    def look(self, *_: object) -> list[Any]:
        return []

    def select(self, _: object) -> Selection:
        return Selection("chosen", [("in", 0, n) for n in range(3)], 0, time.monotonic())

    def take(self, token: str) -> str:
        return token


@pytest.fixture
def acted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What the page's server was asked to do: the action, who asked for it, and by how much it postpones."""
    asked: list[tuple[str, ...]] = []

    def cancel(_: object, __: object, operator: str) -> dict[str, int]:
        asked.append(("cancel", operator))
        return {"cancelled": 3}

    def postpone(_: object, __: object, ___: object, by_ms: int, operator: str) -> dict[str, int]:
        asked.append(("postpone", operator, str(by_ms)))
        return {"postponed": 3}

    monkeypatch.setattr(server, "cancel", cancel)
    monkeypatch.setattr(server, "postpone", postpone)
    return asked


@pytest.fixture
def open_page(tmp_path: Path) -> Iterator[Callable[[], Page]]:
    """A function that opens the page, whose server wants `_TOKEN`."""
    with chromium(tmp_path) as browser, site(f"web.token={_TOKEN}", messages=_Messages()) as found:

        def opened() -> Page:
            return Page(browser, f"http://127.0.0.1:{found.port}/")

        yield opened


def _log_in(page: Page, token: str) -> None:
    page.type("#token", token)
    page.click("#login button")


def test_an_action_needs_a_click_a_complete_form_and_a_yes(
    open_page: Callable[[], Page], acted: list[tuple[str, ...]]
) -> None:
    page = open_page()
    page.shows("#job", "does not answer")
    _log_in(page, _TOKEN)
    page.click("#count")
    page.shows("#chosen", "3 messages")
    # A name is missing.
    page.click("#act [name=cancel]")
    page.type("#act [name=operator]", "Ada")
    for field in ("operator", "by"):
        page.enter(f"#act [name={field}]")
    # So is a duration.
    page.click("#act [name=postpone]")
    page.type("#act [name=by]", "1h")
    page.enter("#act [name=by]")
    page.click("#act [name=postpone]")
    assert page.answer(accepts=False) == "Postpone 3 messages by 1h?"
    page.click("#act [name=cancel]")
    assert page.answer(accepts=False) == "Cancel 3 messages?"
    assert acted == []
    page.click("#act [name=postpone]")
    page.answer(accepts=True)
    page.shows("#said", "^3 postponed$")
    page.click("#count")
    page.shows("#chosen", "3 messages")
    page.clear("#act [name=by]")
    page.click("#act [name=cancel]")
    page.answer(accepts=True)
    page.shows("#said", "^3 cancelled$")
    assert acted == [("postpone", "Ada", "3600000"), ("cancel", "Ada")]


def test_a_token_that_the_server_does_not_take_is_forgotten_and_asked_for_again(open_page: Callable[[], Page]) -> None:
    page = open_page()
    _log_in(page, "wrong-token-of-24-characters")
    page.click("#count")
    page.shows("#said", "this needs the token of web.token")
    assert not page.element("#count").is_displayed()
    # Neither the tab nor its reload has it any more.
    page.reload()
    assert_eventually(lambda: page.element("#token").is_displayed())
    _log_in(page, _TOKEN)
    page.click("#look button")
    page.shows("#said", "nothing waits that fits")
    assert not page.element("#token").is_displayed()


def test_no_button_is_clicked_by_enter_in_the_form_that_acts() -> None:
    """A browser clicks the first button of a form that submits it: the same as above, where there is no browser."""
    kinds: dict[str, set[str | None]] = {}
    form = ""

    class Forms(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            nonlocal form
            own = dict(attributes)
            if tag == "form":
                form = own.get("id") or ""
            if tag == "button" or (tag == "input" and own.get("type") in ("submit", "image")):
                kinds.setdefault(form, set()).add(own.get("type"))

    Forms().feed((_STATIC / "index.html").read_text())
    assert kinds["act"] == {"button"}
    assert None in kinds["look"]
