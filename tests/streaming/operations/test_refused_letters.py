"""Dead letters that stay dead letters when they are resent, against a real broker and without Spark."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from conf.errors import PublishFailed
from sinks.resender import Resender
from sinks.topics.limits import TopicLimits
from state.stub import Stub
from tests.conftest import MakeTopic
from tests.streaming.operations.letter_desk import HOUR_AGO_MS, Desk


def test_a_stub_is_refused_with_the_place_of_its_record(desk: Desk) -> None:
    header = Stub(None, 3_000_000, "0f" * 32, 0).to_header()
    stub, whole = desk.add({"headers": [header], "value": None, "input_partition": 2}, {"headers": [header]})
    result = desk.resend("--unchecked")
    assert (result.exit_code, result.stderr) == (1, "1 resent, 1 refused\n")
    (row,) = (line for line in result.stdout.splitlines() if line.startswith(stub))
    offset = stub.rsplit("/", 1)[1]
    assert "it is a stub without the record's value (3000000 bytes)" in row
    assert f"in partition 2 of {desk.input} at offset {offset}" in row
    assert desk.inputs(1)[0].header("delayline-first-id") == whole.encode()


def test_a_letter_that_the_job_would_refuse_again_stays_a_dead_letter(desk: Desk) -> None:
    good, bad = desk.add({"headers": [("x", b"1")]}, {"headers": [("deliver-to", b"nowhere")]})
    mistaken = desk.resend("--set-header", "deliver-after=soon")
    assert (mistaken.exit_code, mistaken.stderr) == (1, "0 resent, 2 refused\n")
    assert mistaken.stdout.count("refused: bad-deliver-after: ") == 2
    result = desk.resend("--format", "json")
    assert result.exit_code == 1
    outcomes = {line["id"]: line for line in map(json.loads, result.stdout.splitlines())}
    assert outcomes[good]["new_id"] == f"{desk.input}/0/0"
    assert outcomes[bad]["new_id"] is None
    assert outcomes[bad]["refusal"].startswith("topic-not-allowed: ")
    assert len(desk.inputs(1)) == 1
    assert desk.resent("--unchecked") == [bad]
    assert len(desk.inputs(2)) == 2


def test_an_occurrence_that_would_get_a_name_is_resent_by_the_remedy_that_its_refusal_names(desk: Desk) -> None:
    (identity,) = desk.add({"headers": [("delayline-occurrence", b"7"), ("delayline-name", b"n")]})
    named = ("--set", "policies.names=header")
    refused = desk.resend(*named)
    assert refused.exit_code == 1
    assert "Add --drop-header delayline-name" in refused.stdout
    assert desk.resent(*named, "--drop-header", "delayline-name") == [identity]
    assert desk.inputs(1)[0].header("delayline-name") is None


def test_a_letter_that_would_expire_again_is_refused_unless_its_delay_counts_from_now(desk: Desk) -> None:
    (identity,) = desk.add({"code": "expired", "headers": [("deliver-after", b"1m")]})
    policy = ("--code", "expired", "--set", "policies.expire_after=10m")
    refused = desk.resend(*policy)
    assert (refused.exit_code, refused.stderr) == (1, "0 resent, 1 refused\n")
    assert "refused: expired: it could not be delivered until " in refused.stdout
    assert desk.inputs(0) == []
    assert desk.resent(*policy, "--stamp", "now") == [identity]
    assert len(desk.inputs(1)) == 1


def test_a_record_that_its_topic_would_soon_delete_is_resent_only_with_a_new_timestamp(
    desk_of: Callable[..., Desk], make_topic: MakeTopic
) -> None:
    desk = desk_of(f"topics.input={make_topic(3, **{'retention.ms': '3600000'})}")
    (identity,) = desk.add({})
    refused = desk.resend()
    assert refused.exit_code == 1
    assert "keeps records for 1 h (retention.ms)" in refused.stdout
    assert desk.resent("--stamp", "now") == [identity]
    (record,) = desk.inputs(1)
    assert abs(record.timestamp_ms - record.received_ms) < 600_000


def test_a_letter_too_large_for_its_topic_stays_a_dead_letter_and_many_small_ones_do_not_count_as_one(
    desk_of: Callable[..., Desk], make_topic: MakeTopic
) -> None:
    desk = desk_of(f"topics.input={make_topic(3, **{'max.message.bytes': '1000'})}")
    *small, large = desk.add(*({"value": b"v" * 200} for _ in range(20)), {"value": random.randbytes(2_000)})
    refused = desk.resend()
    assert (refused.exit_code, refused.stderr) == (1, "20 resent, 1 refused\n")
    assert "refused: message-too-large: the record takes 2" in refused.stdout
    assert f"max.message.bytes of {desk.input} is 1000" in refused.stdout
    first_ids = [record.header("delayline-first-id") for record in desk.inputs(20)]
    assert first_ids == [identity.encode() for identity in small]
    assert large in desk.resend("--dry-run").stdout


@pytest.mark.parametrize("skips", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_letters_that_only_the_broker_refuses_are_named_and_the_others_are_resent_once(
    desk_of: Callable[..., Desk], make_topic: MakeTopic, skips: bool
) -> None:
    # Compressed they might be small enough: only the broker knows.
    topic = make_topic(3, **{"max.message.bytes": "1000"})
    desk = desk_of(f"topics.input={topic}")
    rows = [{"value": random.randbytes(2_000) if n in (3, 4, 9) else b"v", "partition": n % 2} for n in range(12)]
    ids = desk.add(*rows, {"code": "two-delays"})
    large = {ids[3], ids[4], ids[9]}
    options = ("--code", "bad-deliver-after", "--set", "kafka.compression.type=gzip", "--format", "json")
    resent = desk.resend(*options, *["--skip-rest"][:skips])
    assert (resent.exit_code, resent.stderr) == (1, "9 resent, 3 refused\n")
    outcomes = {line["id"]: line["refusal"] for line in map(json.loads, resent.stdout.splitlines())}
    assert {each for each, refusal in outcomes.items() if refusal is not None} == large
    assert all(f"{desk.input} refuses the record: " in outcomes[each] for each in large)
    # The others are done, and these are not.
    again = desk.resend(*options)
    assert again.stderr == "0 resent, 3 refused\n"
    assert {record.header("delayline-first-id") for record in desk.inputs(9)} == {
        each.encode() for each in ids[:12] if each not in large
    }
    assert desk.resent("--code", "two-delays") == ([] if skips else [ids[12]])


def test_letters_that_were_resent_are_named_although_the_brokers_fail_then(
    desk_of: Callable[..., Desk], make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_of(f"topics.input={make_topic(3, **{'max.message.bytes': '1000'})}")
    ids = desk.add(*({"value": random.randbytes(2_000) if n == 3 else b"v"} for n in range(8)))
    send = Resender.send
    calls = iter(range(9))

    def send_until_it_fails(resender: Resender, records: Any, *positions: Any) -> list[str]:
        # All, the first half, and its first half, which is the first that is committed.
        if next(calls) == 3:
            raise PublishFailed("nothing of this transaction was resent")
        return send(resender, records, *positions)

    monkeypatch.setattr(Resender, "send", send_until_it_fails)
    failed = desk.resend("--set", "kafka.compression.type=gzip", "--format", "json")
    assert failed.exit_code == 1
    assert "nothing of this transaction was resent" in failed.stderr
    assert [json.loads(line)["id"] for line in failed.stdout.splitlines()] == ids[:2]


@pytest.mark.parametrize("hidden", [True, False])
def test_a_letter_without_a_key_or_with_a_timestamp_that_its_topic_refuses_stays_a_dead_letter(
    desk_of: Callable[..., Desk], make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    limits = {"cleanup.policy": "compact", "message.timestamp.before.max.ms": "7200000"}
    limits["message.timestamp.after.max.ms"] = "3600000"
    desk = desk_of(f"topics.input={make_topic(3, **limits)}")
    if hidden:
        monkeypatch.setattr("streaming.operations.resend.input_limits", lambda _: {desk.input: TopicLimits()})
    hour_ms = 3_600_000
    ids = desk.add(
        {"key": b"k"},
        {"key": None},
        {"key": b"k", "published_ms": HOUR_AGO_MS - 2 * hour_ms},
        {"key": b"k", "published_ms": HOUR_AGO_MS + 4 * hour_ms},
        {"key": b"k"},
    )
    resent = desk.resend("--format", "json")
    assert (resent.exit_code, resent.stderr) == (1, "2 resent, 3 refused\n")
    refusals = {line["id"]: line["refusal"] for line in map(json.loads, resent.stdout.splitlines())}
    assert [each for each in ids if refusals[each] is None] == [ids[0], ids[4]]
    if not hidden:
        assert "record-refused: the record has no key, and cleanup.policy of" in refusals[ids[1]]
        assert "before the present time, and message.timestamp.before.max.ms of" in refusals[ids[2]]
        assert "after the present time, and message.timestamp.after.max.ms of" in refusals[ids[3]]
    # The key is still missing.
    assert desk.resend("--stamp", "now").stderr == "2 resent, 1 refused\n"
    assert len(desk.inputs(4)) == 4
