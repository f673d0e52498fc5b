"""Marks each test by what it uses, gives it a time limit, and puts the longest tests first.

A test's fixtures say what it uses: see `_MARKS`. What runs long says so by `@pytest.mark.takes(seconds)`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator

import pytest

# A test has the mark if one of these is among its fixtures, those of its fixtures included.
_MARKS = {
    "java": {"java"},
    "broker": {"broker", "frail", "strict", "secured", "stand"},
    "spark": {"spark"},
    "system": {"application", "demo", "stand"},
}

# Seconds, fixtures included: the first test of a worker waits for the broker and for Spark. Several times what a test
# takes on a quiet machine, since a busy one is no fault of the test.
_LIMIT_S = {"system": 240, "spark": 120, "java": 120}
_UNIT_LIMIT_S = 60
_LIMIT_OF_TAKEN = 6

# What a test is taken to run for that does not say it, in seconds. It decides the order alone.
_TAKEN_S = {"system": 30.0, "spark": 4.0, "java": 1.0}
_UNIT_TAKEN_S = 0.0

# A skipped test fails where CI is set, unless its reason begins with one of these.
ALLOWED_SKIPS = {
    "libfaketime": "the wheel holds the library for Linux on x86-64 alone",
    "a full disk needs a mount": "a container may forbid it, even to root",
}


def pytest_configure(config: pytest.Config) -> None:
    """Make the marks known."""
    for line in (
        "java: starts Java, which `broker`, `spark` and `system` do as well",
        "broker: needs a Kafka broker",
        "spark: needs a Spark session in the test's own process",
        "system: runs the service, or the demo, in processes of its own",
        "soak: needs long, and is run by `make soak` alone",
        "takes(seconds): how long the test runs on a quiet machine with two cores, where that is long",
    ):
        config.addinivalue_line("markers", line)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark, limit, group and order the tests."""
    for item in items:
        for mark, fixtures in _MARKS.items():
            if fixtures & set(getattr(item, "fixturenames", ())):
                item.add_marker(mark)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_limit_s(item)))
        if _unit(item) != item.nodeid:
            item.add_marker(pytest.mark.xdist_group(_unit(item)))
    # The longest first, so that no worker begins one when the others are done. Groups stay together.
    taken_s: defaultdict[str, float] = defaultdict(float)
    for item in items:
        taken_s[_unit(item)] += _taken_s(item)
    place = {_unit(item): number for number, item in enumerate(items)}
    items.sort(key=lambda item: (-taken_s[_unit(item)], place[_unit(item)]))


def _limit_s(item: pytest.Item) -> float:
    default_s = next((limit_s for mark, limit_s in _LIMIT_S.items() if item.get_closest_marker(mark)), _UNIT_LIMIT_S)
    return max(default_s, _LIMIT_OF_TAKEN * _said_s(item))


def _taken_s(item: pytest.Item) -> float:
    default_s = next((taken_s for mark, taken_s in _TAKEN_S.items() if item.get_closest_marker(mark)), _UNIT_TAKEN_S)
    return _said_s(item) or default_s


def _said_s(item: pytest.Item) -> float:
    takes = item.get_closest_marker("takes")
    return float(takes.args[0]) if takes else 0.0


def _unit(item: pytest.Item) -> str:
    """Return what one worker runs as a whole: the module if the test shares a fixture of its module's, or the test.

    All tests with a Spark session in their own process are one, so that there is one session, soon warm.
    """
    assert isinstance(item, pytest.Function)
    if item.get_closest_marker("spark"):
        return "spark"
    definitions = item._fixtureinfo.name2fixturedefs.values()
    shares = any(found[-1].scope == "module" for found in definitions)
    return item.module.__name__ if shares else item.nodeid


@pytest.fixture(autouse=True)
def _no_java(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that is not marked for it finds no Java: what it uses is to be among its fixtures."""
    if request.node.get_closest_marker("java") is None:
        monkeypatch.setenv("JAVA_HOME", "/a-test-that-starts-java-has-the-fixture-java")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, let a skipped test fail that is not allowed to be skipped."""
    report = yield
    if report.skipped and os.environ.get("CI"):
        assert isinstance(report.longrepr, tuple)
        _, _, reason = report.longrepr
        if not any(reason.removeprefix("Skipped: ").startswith(allowed) for allowed in ALLOWED_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"{reason} (tests/collection.py does not allow it in CI)"
    return report
