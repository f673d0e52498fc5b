"""Names: the newest or the first message of each comes out, or the newest when the first was due; cancels by names."""

from __future__ import annotations

import json
import shutil
import time

import pytest

from streaming.judge.names import KEEP, KEEP_TIME, REPLACE
from tests.eventually import assert_eventually
from tests.system.checkpoint_files import accepted
from tests.system.conftest import Application
from tests.system.in_process.conftest import MakeJob
from tests.system.named_load import NamedLoad

pytestmark = pytest.mark.system


@pytest.mark.takes(40)
def test_the_newest_message_of_each_name_comes_out(application: Application, make_job: MakeJob) -> None:
    job, ledger = make_job("policies.names=key")
    ledger.close()
    load = NamedLoad(application)

    def publish() -> None:
        for seed in range(4):
            load.publish_some(50, seed, longest_ms=8_000, names=30)
            time.sleep(1)
        load.verify(60)

    job.run_until(publish)
    load.close()
    assert load.replaced()


@pytest.mark.thorough
@pytest.mark.takes(50)
def test_the_first_message_of_each_name_comes_out_and_what_follows_a_cancel(
    application: Application, make_job: MakeJob
) -> None:
    job, ledger = make_job("policies.names=key", "policies.name_mode=keep", "clock.horizon=15s")
    ledger.close()
    load = NamedLoad(application, KEEP, slack_ms=8_000)
    wants_answer: list[tuple[str, str | bytes | None]] = [("delayline-answer", b"true")]

    def publish() -> None:
        # The first batch stages nothing.
        load.publish("first", 0)
        assert_eventually(lambda: len(load.got) == 1, 60, "the first message")
        for number in range(20):
            # Staged at once; sealed.
            load.publish(f"near{number}", 14_000)
            load.publish(f"far{number}", 26_000)
        accept_all(load, application)
        for number in range(20):
            for name in (f"near{number}", f"far{number}"):
                load.publish(name, 2_000, headers=wants_answer if number % 2 else ())
        accept_all(load, application)
        for number in range(10):
            load.publish(f"near{number}", None)
            load.publish(f"far{number}", None)
        accept_all(load, application)
        for number in range(10):
            load.publish(f"near{number}", 1_000)
            load.publish(f"far{number}", 1_000)
        load.verify(90)

    job.run_until(publish)
    load.close()
    dropped = [json.loads(answer.value or b"{}") for answer in load.answers]
    assert {answer["reason"] for answer in dropped if answer["result"] == "kept"} == {"name-kept"}


@pytest.mark.thorough
@pytest.mark.takes(40)
def test_the_newest_message_of_each_name_comes_out_when_the_first_was_due(
    application: Application, make_job: MakeJob
) -> None:
    job, ledger = make_job("policies.names=key", "policies.name_mode=keep-time", "clock.horizon=15s")
    ledger.close()
    load = NamedLoad(application, KEEP_TIME, slack_ms=8_000)

    def publish() -> None:
        # The first batch stages nothing.
        load.publish("first", 0)
        assert_eventually(lambda: len(load.got) == 1, 60, "the first message")
        # The first message is staged at once, or sealed. Others of its name come with it, and later.
        for near_ms, far_ms in ((14_000, 26_000), (0, 0), (60_000, 60_000)):
            for number in range(20):
                load.publish(f"near{number}", near_ms)
                load.publish(f"far{number}", far_ms)
            if near_ms:
                accept_all(load, application)
        load.verify(60)

    job.run_until(publish)
    load.close()
    assert load.replaced()


def accept_all(load: NamedLoad, application: Application) -> None:
    """Wait until the job has accepted all that was published."""
    load.flush()
    assert_eventually(lambda: accepted(application.checkpoint) == len(load.records), 60, "acceptance")


@pytest.mark.thorough
@pytest.mark.takes(50)
def test_what_fell_due_in_an_outage_is_replaced_and_cancelled_by_its_name(
    application: Application, make_job: MakeJob
) -> None:
    job, ledger = make_job("policies.names=key")
    ledger.close()
    load = NamedLoad(application)

    def publish() -> None:
        load.publish("first", 0)
        assert_eventually(lambda: len(load.got) == 1, 60, "the first message")
        for name in ("a", "b", "c"):
            load.publish(name, 15_000)
        accept_all(load, application)

    job.run_until(publish)
    waiting = {each.name: each for each in load.records.values() if each.name != "first"}
    last_ms = max(each.due_ms or 0 for each in waiting.values())
    assert_eventually(lambda: time.time() * 1000 > last_ms, 20, "the due times")
    load.publish("a", 1_000)
    load.publish("b", None)
    load.flush()
    job.run_until(lambda: load.verify(60))
    load.close()
    assert load.replaced() == {waiting["a"].id, waiting["b"].id}


@pytest.mark.thorough
@pytest.mark.takes(60)
@pytest.mark.parametrize(
    ("mode", "newest_ms"),
    # By its own due time, the newest of each name would count as staged.
    [(REPLACE, 60_000), (KEEP_TIME, 1_000)],
)
def test_after_a_rebuild_without_the_table_the_newest_message_of_each_name_comes_out(
    application: Application, make_job: MakeJob, mode: str, newest_ms: int
) -> None:
    job, ledger = make_job("policies.names=key", f"policies.name_mode={mode}")
    ledger.close()
    load = NamedLoad(application, mode)

    def publish() -> None:
        for delay_ms in (60_000, 60_000, newest_ms):
            for number in range(20):
                load.publish(f"n{number}", delay_ms)
            accept_all(load, application)
        # Only staged messages say how far the input was read.
        for number in range(10):
            load.publish(f"now{number}", 0)
        accept_all(load, application)
        assert_eventually(lambda: len(load.got) == 10, 60, "what is due at once")

    job.run_until(publish)
    shutil.rmtree(application.storage)
    rebuilt = job.command("rebuild")
    assert rebuilt.exit_code == 0, rebuilt.output
    job.run_until(lambda: load.verify(120))
    load.close()
    assert len(load.replaced()) == 40
