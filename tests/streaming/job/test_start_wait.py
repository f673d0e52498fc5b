from __future__ import annotations

from pathlib import Path

import pytest

from conf.errors import BrokerUnreachable, TopicMissing
from conf.load import load_settings
from streaming.job.start_wait import StartWait

AWAY = BrokerUnreachable("nobody answers")


def _wait(storage: Path, outage_limit: str = "1s") -> StartWait:
    overrides = [f"storage.path={storage}", f"kafka.outage_limit={outage_limit}"]
    return StartWait(load_settings(None, overrides, environ={}))


@pytest.fixture
def has_run(tmp_path: Path) -> Path:
    """The storage of a job that has a checkpoint."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "delayline-origin.json").write_text("{}")
    return tmp_path


def test_a_first_start_does_not_wait_for_a_broker(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnreachable) as raised:
        _wait(tmp_path).wait(AWAY)
    assert raised.value is AWAY


def test_a_start_with_a_checkpoint_waits_for_the_outage_limit(has_run: Path, caplog: pytest.LogCaptureFixture) -> None:
    wait = _wait(has_run)
    wait.wait(AWAY)
    assert "the start: Kafka does not answer; retrying for 1 s more: broker-unreachable: nobody answers" in caplog.text

    def wait_on() -> None:
        while True:
            wait.wait(AWAY)

    with pytest.raises(BrokerUnreachable, match=r"no broker answered for 1 s \(kafka\.outage_limit\)"):
        wait_on()


def test_a_topic_that_is_missing_after_an_outage_is_looked_for_once_more(
    has_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.job.start_wait.STARTING_S", 0.0)
    missing = TopicMissing("in is missing")
    wait = _wait(has_run, "1m")
    with pytest.raises(TopicMissing):
        wait.wait(missing)
    wait.wait(AWAY)
    wait.wait(missing)
    with pytest.raises(TopicMissing):
        wait.wait(missing)
