"""The page in a real browser when a person types and clicks. No job runs behind it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from state.repeats.rule import parse_rule
from state.repeats.schedule import NUMBER_HEADER, SCHEDULE_HEADER, Schedule
from streaming.status.lanes import LaneStatus
from streaming.web import server
from streaming.web.selections import Selection
from tests.browser import Page, chromium
from tests.eventually import assert_eventually
from tests.streaming.web.sampled import SampledHistory
from tests.streaming.web.site import site

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

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


class _Orders(_Messages):
    """Two messages of a shop wait."""

    def look(self, *_: object) -> list[Any]:
        due_ms = time.time_ns() // 1_000_000 + 600_000
        return [
            {
                "id": f"delayline-in/{number}/{48_211 + 7 * number}",
                "place": "mutable",
                "deliver_at_ms": due_ms + 1_700 * number,
                "timestamp_ms": due_ms - 900_000,
                "output_topic": "orders",
                "error_code": None,
                "repeats": False,
                "key": f"customer-{number + 7}".encode(),
                "value": f'{{"order": {29_158 + number}, "remind": true}}'.encode(),
                "value_bytes": 31,
                "headers": [{"key": "deliver-after", "value": b"15m"}, {"key": "deliver-to", "value": b"orders"}],
            }
            for number in range(2)
        ]


class _Schedules(_Messages):
    """Two schedules wait."""

    def look(self, *_: object) -> list[Any]:
        # 2027-01-01T00:00:00Z.
        due_ms = 1_798_761_600_000
        rules = [Schedule(parse_rule("0 9 * * *", "Europe/Berlin")), Schedule(parse_rule("every 10m"), count=4)]
        return [
            {
                "id": f"delayline-in/0/{number}",
                "place": "sealed",
                "deliver_at_ms": due_ms,
                "timestamp_ms": due_ms,
                "output_topic": "orders",
                "error_code": None,
                "repeats": True,
                "key": None,
                "value": b"v",
                "value_bytes": 1,
                "headers": [
                    {"key": "x", "value": b"1"},
                    {"key": SCHEDULE_HEADER, "value": schedule.to_bytes()},
                    {"key": NUMBER_HEADER, "value": b"3"},
                ],
            }
            for number, schedule in enumerate(rules)
        ]


@pytest.fixture
def acted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The requests to the page's server: the action, who requested it, and by how much it postpones."""
    asked: list[tuple[str, ...]] = []

    def cancel(_: object, __: object, operator: str) -> dict[str, int]:
        asked.append(("cancel", operator))
        return {"cancelled": 3}

    def postpone(_: object, __: object, ___: object, by_ms: int, operator: str) -> dict[str, int]:
        asked.append(("postpone", operator, str(by_ms)))
        return {"postponed": 3}

    def deliver_now(_: object, __: object, operator: str) -> dict[str, int]:
        asked.append(("deliver-now", operator))
        return {"due-now": 3}

    monkeypatch.setattr(server, "cancel", cancel)
    monkeypatch.setattr(server, "deliver_now", deliver_now)
    monkeypatch.setattr(server, "postpone", postpone)
    return asked


@pytest.fixture
def open_page(tmp_path: Path) -> Iterator[Callable[[], Page]]:
    """A function that opens the page. Its server wants `_TOKEN`."""
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
    page.click("#act [name=deliver-now]")
    assert page.answer(accepts=False) == "Deliver 3 messages now?"
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
    page.click("#count")
    page.shows("#chosen", "3 messages")
    page.click("#act [name=deliver-now]")
    page.answer(accepts=True)
    page.shows("#said", "^3 due-now$")
    assert acted == [("postpone", "Ada", "3600000"), ("cancel", "Ada"), ("deliver-now", "Ada")]


def test_a_token_that_the_server_does_not_take_is_forgotten_and_asked_for_again(open_page: Callable[[], Page]) -> None:
    page = open_page()
    _log_in(page, "wrong-token-of-24-characters")
    page.click("#count")
    page.shows("#said", "enter the token of web.token")
    assert not page.element("#count").is_displayed()
    # Neither the tab nor its reload has it any more.
    page.reload()
    assert_eventually(lambda: page.element("#token").is_displayed())
    _log_in(page, _TOKEN)
    page.click("#look button")
    page.shows("#said", "nothing waits that fits")
    assert not page.element("#token").is_displayed()


def _lines(browser: WebDriver, charts: Iterable[str]) -> dict[str, int]:
    """Return how many lines each of the charts has."""
    return {each: len(browser.find_elements("css selector", f"#{each} .scatterlayer .trace")) for each in charts}


def test_the_page_shows_all_that_is_sampled(tmp_path: Path) -> None:
    """Also takes the picture of the docs, with made-up numbers:

    PAGE_PICTURE=docs/images/page.png pytest tests/streaming/web/test_page.py -k sampled
    """
    with chromium(tmp_path) as browser, site(messages=_Orders(), history=SampledHistory()) as found:
        browser.set_window_size(1280, 2060)
        page = Page(browser, f"http://127.0.0.1:{found.port}/")
        page.shows(
            "#figures", r"merges\s+1 running\s+412 finished since the start, the last 94 s ago: 16 buckets in 3.1 s"
        )
        page.shows("#shards", "delayline-release-1")
        page.shows("#figures", r"release processes\s+2\s.*\s+forwarders\s+1\s")
        page.shows("#forwarders", "^delayline-forward-0 on delayline-forward-0; 1,852 records undecided$")
        page.shows("#lanes", r"0 12 delayline-forward-0 delayline-forward-0\s+1 1,840 the job none")
        page.shows("#problems", "delayline-release-1 WARNING Kafka does not answer")
        lines = {"due": 0, "lateness": 2, "rates": 2, "waiting": 3, "buckets": 3}
        assert_eventually(lambda: _lines(browser, lines) == lines, 60, "the charts")
        page.click("#look button")
        page.shows("#said", "2 shown")
        picture = Path(os.environ.get("PAGE_PICTURE", tmp_path / "page.png"))
        page.picture(picture)
    assert 20_000 < picture.stat().st_size < 300_000


def test_page_shows_rule_and_next_three_instants_of_what_repeats(tmp_path: Path) -> None:
    with chromium(tmp_path) as browser, site(messages=_Schedules()) as found:
        page = Page(browser, f"http://127.0.0.1:{found.port}/")
        page.click("#look button")
        page.shows("#said", "2 shown")
        days = "2027-01-01T00:00:00.000Z, 2027-01-01T08:00:00.000Z, 2027-01-02T08:00:00.000Z"
        page.shows("#messages tbody", rf"repeats 0 9 \* \* \* \(Europe/Berlin\), next {days}\nx: 1\n")
        # No more come after the fourth.
        minutes = "2027-01-01T00:00:00.000Z, 2027-01-01T00:10:00.000Z"
        page.shows("#messages tbody", rf"repeats every 10m, next {minutes}\nx: 1$")
        assert "delayline-" not in page.element("#messages tbody").text.replace("delayline-in", "")


def test_the_page_shows_lanes_only_if_forwarders_are_on_and_says_if_none_runs(tmp_path: Path) -> None:
    def seen(browser: WebDriver, history: SampledHistory) -> Page:
        with site(history=history) as found:
            page = Page(browser, f"http://127.0.0.1:{found.port}/")
            page.shows("#job", "the job answers")
        return page

    with chromium(tmp_path) as browser:
        page = seen(browser, SampledHistory(lanes=[], forwarders=[]))
        page.shows("#figures", r"release processes\s+2\s")
        assert "forwarders" not in page.element("#figures").text
        assert not page.element("#forward").is_displayed()
        page = seen(browser, SampledHistory(lanes=[LaneStatus(0, "", 7)], forwarders=[]))
        page.shows("#figures", r"forwarders\s+no process runs\s")
        page.shows("#forwarders", "^no process runs; 7 records undecided$")
        page.shows("#lanes tbody", "^0 7 - none$")
        # The brokers did not say.
        page = seen(browser, SampledHistory(lanes=None, forwarders=None))
        page.shows("#figures", r"release processes\s+2\s")
        assert "forwarders" not in page.element("#figures").text
        page.shows("#forwarders", "^unknown$")


def test_no_button_is_clicked_by_enter_in_the_form_that_acts() -> None:
    """A browser clicks the first button that submits a form. This reads the HTML, without a browser."""
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
