"""Mark each test by the fixtures it uses, give it a time limit, and run the longest tests first.

`_MARKS` lists the fixtures of each mark. A long test declares its duration with `@pytest.mark.takes(seconds)`.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections import defaultdict
from collections.abc import Generator

import pytest

# A test gets the mark if it uses one of these fixtures, directly or through another fixture.
_MARKS = {
    "java": {"java"},
    "broker": {"broker", "frail", "proxied", "strict", "secured", "stand"},
    "spark": {"spark"},
    "system": {"application", "demo", "stand"},
}

# Time limits in seconds, fixtures included: a worker's first test also waits until the broker and Spark have started.
# They are several times the duration on an idle machine, so that a busy machine fails no test.
# A limit that strikes in the middle of a call to Java breaks the session that all later tests of its worker share.
_LIMIT_S = {"system": 900, "spark": 600, "java": 400}
_UNIT_LIMIT_S = 120
_LIMIT_FACTOR = 10
# pytest-timeout fails a test by an exception, which does not reach a thread inside a call to C, and ends no wait for
# another thread. So much later the process ends itself, and the run with it (`make test`).
_GRACE_S = 60
# Between two tests a worker reports and waits for the next one, a moment.
_IDLE_S = 600

# The assumed duration, in seconds, of a test without `takes`. Only the order depends on it.
_DURATION_S = {"system": 30.0, "spark": 4.0, "java": 1.0}
_UNIT_DURATION_S = 0.0

# The tests with a Spark session make three groups of about the same duration. These folders are one of them.
_OF_BATCHES = {
    "tests.streaming.job",
    *(f"tests.streaming.job.{each}" for each in ("inputs", "lanes", "sealed", "watches")),
    "tests.streaming.maintenance",
}

# Brokers in addition to the one that each worker has. One worker starts such a broker once, and runs all its tests.
_SHARED_BROKERS = {"proxied", "strict"}

# If CI is set, a skipped test fails unless its reason begins with one of these.
ALLOWED_SKIPS = {
    "libfaketime": "the wheel contains the library for Linux on x86-64 only",
    "a full disk needs a mount": "a container may forbid it, even to root",
    "an earlier version": "a shallow clone does not have its commit",
    "an S3 server": "Go builds it, which a machine may not have; `delayline jars --s3` fetches Hadoop's client",
    "kustomize": "it comes with kubectl, from the system",
    "promtool": "it comes with Prometheus, from the system",
    "Chromium": "a browser comes from the system, not from a registry of Python's packages",
}


# Standard error as it was before pytest began to capture it for each test.
_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks."""
    config.stash[_STDERR] = os.dup(sys.__stderr__.fileno()) if sys.__stderr__ else os.dup(2)
    for line in (
        "java: starts Java, as `broker`, `spark` and `system` do too",
        "broker: needs a Kafka broker",
        "spark: needs a Spark session in the test's own process",
        "system: runs the service, or the demo, in separate processes",
        "thorough: takes long, and others show in part what it shows; `make test-all` runs it, `make test` does not",
        "soak: runs long; only `make soak` runs it",
        "takes(seconds): the test's duration on an idle machine with two cores, if that is long",
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
    # The longest first, so that no worker starts a long one when the others are done. Groups stay together.
    duration_s: defaultdict[str, float] = defaultdict(float)
    for item in items:
        duration_s[_unit(item)] += _duration_s(item)
    place = {_unit(item): number for number, item in enumerate(items)}
    items.sort(key=lambda item: (-duration_s[_unit(item)], place[_unit(item)]))


def _limit_s(item: pytest.Item) -> float:
    default_s = next((limit_s for mark, limit_s in _LIMIT_S.items() if item.get_closest_marker(mark)), _UNIT_LIMIT_S)
    return max(default_s, _LIMIT_FACTOR * _declared_s(item))


def _duration_s(item: pytest.Item) -> float:
    default_s = next(
        (seconds for mark, seconds in _DURATION_S.items() if item.get_closest_marker(mark)), _UNIT_DURATION_S
    )
    return _declared_s(item) or default_s


def _declared_s(item: pytest.Item) -> float:
    takes = item.get_closest_marker("takes")
    return float(takes.args[0]) if takes else 0.0


def _unit(item: pytest.Item) -> str:
    """Return the group that one worker runs: the module if the test uses a module-scoped fixture, else the test alone.

    The tests with an in-process Spark session form three groups: three workers start a session, which is soon warm.
    """
    assert isinstance(item, pytest.Function)
    if item.get_closest_marker("spark"):
        if item.get_closest_marker("system"):
            return "spark of the service"
        return "spark of the batches" if item.module.__package__ in _OF_BATCHES else "spark"
    if shared := _SHARED_BROKERS & set(item.fixturenames):
        return f"tests of {min(shared)}"
    definitions = item._fixtureinfo.name2fixturedefs.values()
    shares = any(overrides[-1].scope == "module" for overrides in definitions)
    return item.module.__name__ if shares else item.nodeid


@pytest.fixture(autouse=True)
def _no_java(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide Java from a test without the mark `java`, so that a test that starts Java must use a fixture for it."""
    if request.node.get_closest_marker("java") is None:
        monkeypatch.setenv("JAVA_HOME", "/a-test-that-starts-java-has-the-fixture-java")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """End this process, with the traces of its threads, if a test still hangs when its time limit has struck.

    Also if it is lost between two tests.
    """
    limit = item.get_closest_marker("timeout")
    assert limit is not None
    _end_later(item.config, limit.args[0] + _GRACE_S)
    try:
        return (yield)
    finally:
        _end_later(item.config, _IDLE_S)


def pytest_sessionfinish() -> None:
    """Let the process take its time to end."""
    faulthandler.cancel_dump_traceback_later()


def _end_later(config: pytest.Config, after_s: float) -> None:
    faulthandler.dump_traceback_later(after_s, exit=True, file=config.stash[_STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, turn a skip that `ALLOWED_SKIPS` does not list into a failure."""
    report = yield
    if report.skipped and os.environ.get("CI"):
        assert isinstance(report.longrepr, tuple)
        _, _, reason = report.longrepr
        if not any(reason.removeprefix("Skipped: ").startswith(allowed) for allowed in ALLOWED_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"{reason} (tests/collection.py does not allow it in CI)"
    return report
