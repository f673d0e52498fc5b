"""Waiting until all staged messages are released, with a real broker."""

from __future__ import annotations

import logging
import re
import time

import pytest
from confluent_kafka import Producer

from conf.errors import TopicMissing
from conf.load import load_settings
from conf.settings import Settings
from state.answers import Undecided
from state.kinds import REQUEST
from streaming.processes import drain as module
from streaming.processes.drain import drain, left_to_release, unreleased_shards
from streaming.processes.kinds import Kind
from streaming.processes.restarts import Pauses
from streaming.processes.supervisor import Processes
from tests.conftest import MakeSettings
from tests.eventually import assert_eventually
from tests.streaming.processes.conftest import Released, Stage, delete_records


def test_without_messages_no_process_is_started(prepared: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Processes", None)
    assert left_to_release(prepared) == {}
    drain(prepared)


def test_its_process_takes_no_address_that_a_release_process_of_this_host_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Settings] = []

    class Processes:
        def __init__(self, settings: Settings, *_: object, **__: object) -> None:
            started.append(settings)

        def __enter__(self) -> Processes:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def start(self) -> None:
            pass

    left = iter([[0], []])
    monkeypatch.setattr(module, "Processes", Processes)
    monkeypatch.setattr(module, "unreleased_shards", lambda _: next(left))
    settings = load_settings(None, ["monitor.release=127.0.0.1:9465", "monitor.job=127.0.0.1:9464"], environ={})
    drain(settings)
    (own,) = started
    assert own.monitor.release == ""
    assert own.model_copy(update={"monitor": settings.monitor}) == settings


@pytest.mark.takes(13)
def test_all_messages_of_all_shards_are_released_when_they_are_due(
    prepared: Settings, staged: Stage, released: Released, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    due_ms = time.time_ns() // 1_000_000 + 8_000
    staged(1, 2, due_ms)
    staged(3, shard=1)
    # A commit is done before it is seen in all partitions.
    assert_eventually(lambda: left_to_release(prepared) == {0: 3, 1: 1}, 60)
    drain(prepared)
    assert time.time_ns() // 1_000_000 >= due_ms
    assert left_to_release(prepared) == {0: 0, 1: 0}
    assert sorted(released()) == [1, 2, 3, due_ms]
    # The release process may have begun before the drain counts.
    assert re.search(r"waiting until about [1-4] messages of shards \[0, 1\] are due and released", caplog.text)
    # Nothing is left to do.
    drain(prepared)


@pytest.mark.thorough
@pytest.mark.takes(8)
def test_a_cancel_that_takes_out_two_messages_with_one_id_leaves_nothing_to_wait_for(
    prepared: Settings, staged: Stage, released: Released
) -> None:
    due_ms = time.time_ns() // 1_000_000 + 20_000
    # As after an input topic was created again.
    staged(due_ms, offset=7)
    staged(due_ms + 1, offset=7)
    request = Undecided(due_ms + 1_000, due_ms - 20_000, 2, 0)
    results = prepared.results_topic
    staged(1, kind=REQUEST, output_topic=results, key=b"delayline-in/0/7", value=request.to_bytes())
    drain(prepared)
    assert released() == []
    assert unreleased_shards(prepared) == []


@pytest.mark.thorough
@pytest.mark.takes(8)
def test_a_log_that_is_deleted_to_its_end_when_all_is_released_is_no_loss(
    prepared: Settings, staged: Stage, released: Released
) -> None:
    staged(1)
    drain(prepared)
    assert delete_records(prepared, prepared.ready_topic, 0) > 1
    assert unreleased_shards(prepared) == []
    staged(2)
    drain(prepared)
    assert released() == [1, 2]


@pytest.mark.takes(8)
def test_a_transaction_that_is_open_or_was_aborted_holds_nothing_back_once_it_is_ended(
    prepared: Settings, staged: Stage, released: Released
) -> None:
    staged(1)
    servers = prepared.kafka.bootstrap_servers
    writer = Producer({"bootstrap.servers": servers, "transactional.id": prepared.application_id})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(prepared.ready_topic, b"cut off", partition=0)
    writer.flush()
    with Processes(prepared, {Kind.RELEASE: 1}) as processes:
        processes.start()
        assert_eventually(lambda: released() == [1], 60)
        assert unreleased_shards(prepared) == [0]
        writer.abort_transaction()
        assert_eventually(lambda: unreleased_shards(prepared) == [], 60)
        staged(2)
        assert_eventually(lambda: released() == [1, 2], 60)
        processes.check()


@pytest.mark.thorough
@pytest.mark.takes(6)
def test_other_release_processes_may_take_part(prepared: Settings, staged: Stage, released: Released) -> None:
    staged(1)
    with Processes(prepared, {Kind.RELEASE: 1}) as processes:
        processes.start()
        staged(2, shard=1)
        drain(prepared)
    assert sorted(released()) == [1, 2]


def test_an_application_without_topics_is_refused_or_has_nothing(make_settings: MakeSettings) -> None:
    assert left_to_release(make_settings()) == {}


@pytest.mark.takes(8)
def test_the_error_of_its_process_is_raised(prepared: Settings, staged: Stage) -> None:
    staged(1)
    other = prepared.model_copy(update={"topics": prepared.topics.model_copy(update={"output": "nowhere"})})
    with pytest.raises(TopicMissing, match="nowhere"):
        drain(other, Pauses(longest_s=0.1))
