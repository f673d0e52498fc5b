"""A real browser, and the page of `delayline web` in it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.eventually import assert_eventually

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver
    from selenium.webdriver.remote.webelement import WebElement


@contextmanager
def chromium(folder: Path) -> Iterator[WebDriver]:
    """Run a Chromium without a window, with its files in `folder`. Skip the test if Chromium is not installed."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("Chromium and its driver are not installed")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,2200", "--lang=en"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={folder / 'chromium'}")
    found = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        yield found
    finally:
        found.quit()


class Page:
    """The page at `address`, as a person uses it."""

    def __init__(self, browser: WebDriver, address: str) -> None:
        self._browser = browser
        browser.get(address)

    def reload(self) -> None:
        """Load the page again in the same tab."""
        self._browser.refresh()

    def picture(self, path: Path) -> None:
        """Write what the window shows as a PNG."""
        self._browser.save_screenshot(str(path))

    def element(self, selector: str) -> WebElement:
        """Return the first element of `selector`."""
        return self._browser.find_element("css selector", selector)

    def shows(self, selector: str, pattern: str) -> None:
        """Wait until the text of an element fits `pattern`."""
        assert_eventually(lambda: re.search(pattern, self.element(selector).text), 60, f"{selector} with {pattern}")

    def click(self, selector: str) -> None:
        """Click an element, once it may be clicked."""
        assert_eventually(lambda: self.element(selector).is_enabled(), 60, selector)
        self.element(selector).click()

    def looks(self, pattern: str) -> None:
        """Look until a look shows `pattern`. The result of a look is as old as the last committed batch."""

        def fits() -> bool:
            self.click("#look button")
            assert_eventually(lambda: not self.element("#said").text.endswith("…"), 60, "a look")
            return re.search(pattern, self.element("#said").text) is not None

        assert_eventually(fits, 60, pattern)

    def type(self, selector: str, text: str) -> None:
        """Write `text` into a field, in place of its content."""
        self.clear(selector)
        self.element(selector).send_keys(text)

    def clear(self, selector: str) -> None:
        """Empty a field."""
        self.element(selector).clear()

    def enter(self, selector: str) -> None:
        """Press Enter in a field."""
        self.element(selector).send_keys("\ue007")

    def answer(self, accepts: bool) -> str:
        """Accept the page's question, or not; return its text."""
        alert = assert_eventually(self._question, 10, "a question")
        text = str(alert.text)
        if accepts:
            alert.accept()
        else:
            alert.dismiss()
        return text

    def _question(self):  # type: ignore[no-untyped-def]
        from selenium.common.exceptions import NoAlertPresentException

        try:
            return self._browser.switch_to.alert
        except NoAlertPresentException:
            return None
