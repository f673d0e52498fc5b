"""The page of `delayline web` next to a running job: what it shows, and what a person does in a real browser."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streaming.local.free_port import free_port
from tests.browser import Page, chromium
from tests.eventually import assert_eventually
from tests.system.checkpoint_files import accepted
from tests.system.conftest import Application, MakeService

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

_HOUR_MS = 3_600_000
_TOKEN = "a-token-of-24-characters"
# A value that would act, if the page took it for HTML.
_HOSTILE = "<img src=x onerror=\"document.title='taken over'\">"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[WebDriver]:
    """A Chromium without a window."""
    with chromium(tmp_path) as found:
        yield found


@pytest.fixture
def start_page(application: Application) -> Iterator[Callable[..., str]]:
    """A function that starts `delayline web` with further settings, and returns its address."""
    with ExitStack() as stack:

        def start(*overrides: str) -> str:
            port = free_port()
            log = application.folder / f"web-{port}.log"
            command = [sys.executable, "-m", "streaming.cli", "web", "--set", f"web.address=127.0.0.1:{port}"]
            for override in application.overrides(*overrides):
                command += ["--set", override]
            with log.open("wb") as output:
                process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            stack.callback(lambda: sys.stderr.write(log.read_text(errors="replace")[-3000:]))
            stack.callback(process.wait)
            stack.callback(process.terminate)
            assert_eventually(
                lambda: "the page is at" in log.read_text() or process.poll() is not None, 30, "its start"
            )
            return f"http://127.0.0.1:{port}/"

        yield start


@pytest.mark.thorough
@pytest.mark.takes(90)
def test_a_person_looks_cancels_and_postpones(
    application: Application, make_service: MakeService, start_page: Callable[..., str], browser: WebDriver
) -> None:
    monitored = f"monitor.job=127.0.0.1:{free_port()}"
    service, ledger = make_service(monitored)
    service.start()
    for number in range(40):
        value = _HOSTILE if number == 7 else f"value {number}"
        headers = [("deliver-after", str(_HOUR_MS).encode()), ("colour", b"red")]
        key = b"odd" if number % 2 else b"even"
        output = application.output
        ledger.publish(
            application.input, value.encode(), headers, key=key, output=output, delay_ms=_HOUR_MS, name=value
        )
    ledger.flush()
    assert_eventually(lambda: accepted(application.checkpoint) == 40, 60)
    ids = {name: identity for identity, name in ledger.names.items()}
    page = Page(browser, start_page(monitored, f"web.token={_TOKEN}"))

    # The counts need no login.
    page.shows("#figures", r"waiting\s+40 messages")
    page.shows("#job", "the job answers at")
    page.shows("#forwarders", r"^\S+-job-forward-0 on \S+; 0 records undecided$")
    page.shows("#lanes tbody", r"^0 0 \S+-job-forward-0 \S+-job-forward-0$")
    assert_eventually(lambda: browser.find_elements("css selector", "#due .bars path"), 30, "the chart")
    assert not page.element("#count").is_displayed()

    # Messages do.
    page.click("#look button")
    page.shows("#said", "enter the token of web.token")
    page.type("#token", "wrong-token-of-24-characters")
    page.click("#login button")
    page.click("#look button")
    page.shows("#said", "enter the token of web.token")
    page.type("#token", _TOKEN)
    page.click("#login button")
    page.click("#look button")
    page.shows("#said", "40 shown")
    text = page.element("#messages").text
    assert _HOSTILE in text
    assert "colour: red" in text
    assert browser.title == "Delayline"

    # Counted first, then cancelled: those with one key.
    page.type("#look [name=key]", "odd")
    page.click("#count")
    page.shows("#chosen", "20 messages")
    page.type("#act [name=operator]", "Ada")
    page.enter("#act [name=operator]")
    page.click("#act [name=cancel]")
    assert page.answer(accepts=True) == "Cancel 20 messages?"
    page.shows("#said", "^20 cancelled$")
    page.clear("#look [name=key]")

    # Those that are left are postponed by a day: they wait under new ids.
    page.type("#look [name=ids]", f"{ids['value 2']} {ids['value 4']}")
    page.click("#count")
    page.shows("#chosen", "2 messages")
    page.type("#act [name=by]", "1d")
    # Enter acts on nothing: the messages are still there to be postponed.
    page.enter("#act [name=by]")
    page.click("#act [name=postpone]")
    assert page.answer(accepts=True) == "Postpone 2 messages by 1d?"
    page.shows("#said", "^2 postponed$")
    page.looks("nothing waits that fits")
    page.clear("#look [name=ids]")
    page.type("#look [name=due_from]", "20h")
    page.looks("2 shown")
    shown = {cell.text for cell in browser.find_elements("css selector", "#messages td")}
    assert {"value 2", "value 4"} <= shown
    page.clear("#look [name=due_from]")
    page.looks("20 shown")
    assert service.stop() == 0, service.log[-3000:]
    page.shows("#job", "does not answer")
