"""The marks, time limits, order and skips that `tests/collection.py` applies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

_TESTS = """
import os, time, pytest

@pytest.fixture
def java(): return "java"
@pytest.fixture
def broker(java): return "broker"
@pytest.fixture
def topic(broker): return "topic"
@pytest.fixture(scope="module")
def shared(): return []

def test_plain(): assert os.environ["JAVA_HOME"].startswith("/a-test-that-starts-java")
def test_with_topic(topic): assert "JAVA_HOME" not in os.environ
@pytest.mark.takes(100)
def test_long(): pass
def test_first_of_a_module(shared): pass
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder of tests that run with the plugin."""
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.delenv("CI", raising=False)
    pytester.makeconftest("from tests.collection import *\nfrom tests.collection import _no_java")
    return pytester


def test_the_longest_tests_run_first_and_indirect_fixtures_decide_marks(run: pytest.Pytester) -> None:
    run.makepyfile(_TESTS)
    order = [line.rpartition("::")[2] for line in run.runpytest("--co", "-q").outlines if "::" in line]
    assert order == ["test_long", "test_with_topic", "test_plain", "test_first_of_a_module"]
    run.runpytest("-m", "java and broker").assert_outcomes(passed=1, deselected=3)
    run.runpytest().assert_outcomes(passed=4)


@pytest.mark.thorough
def test_one_worker_runs_all_tests_that_share_a_fixture_of_their_module(
    run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The workers are separate processes.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    tests = "".join(f"def test_{number}(shared, worker_id): print('worker', worker_id)\n" for number in range(6))
    run.makepyfile(f"import pytest\n@pytest.fixture(scope='module')\ndef shared(): return []\n{tests}")
    # If the tests were not one group, each worker would get at least two of them.
    arguments = ("-n", "3", "--dist", "loadgroup", "--no-loadscope-reorder", "-rP", "-p", "no:cacheprovider")
    result = run.runpytest_subprocess(*arguments)
    result.assert_outcomes(passed=6)
    assert len({line for line in result.outlines if line.startswith("worker gw")}) == 1


def test_a_test_that_exceeds_its_limit_fails(run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough for the other test on a busy machine.
    monkeypatch.setattr("tests.collection._UNIT_LIMIT_S", 3.0)
    run.makepyfile("import time\ndef test_slow(): time.sleep(60)\ndef test_other(): pass")
    result = run.runpytest()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines("*Timeout (>3.0s)*")


@pytest.mark.parametrize(
    ("reason", "in_ci", "fails"), [("a mount", "1", 1), ("a mount", "", 0), ("libfaketime", "1", 0)]
)
def test_a_skipped_test_fails_in_ci_unless_its_reason_is_allowed(
    run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, reason: str, in_ci: str, fails: int
) -> None:
    monkeypatch.setenv("CI", in_ci)
    mark = f"@pytest.mark.skipif(True, reason='{reason}')\ndef test_marked(): pass"
    run.makepyfile(f"import pytest\ndef test_called(): pytest.skip('{reason}')\n{mark}")
    run.runpytest().assert_outcomes(failed=fails, errors=fails, skipped=2 * (1 - fails))


def test_no_test_module_is_imported() -> None:
    """Code that two of them need is in its own module, or in a `conftest.py`."""
    imports = re.compile(r"^\s*(?:from|import) (tests\.(?:\w+\.)*test_\w+)", re.MULTILINE)
    modules = Path(__file__).parent.rglob("*.py")
    assert not {str(module): found for module in modules if (found := imports.findall(module.read_text()))}
