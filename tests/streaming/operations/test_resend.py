"""Resending dead letters to their input topics, against a real broker and without Spark."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from conf.errors import PublishFailed
from conf.settings import Settings
from sinks.resender import Outgoing, Resender
from sinks.topics.limits import TopicLimits
from sinks.topics.topics import ensure_topics
from sources.dead_letters.reader import DeadLetterReader
from sources.subscriber import Received, Subscriber
from state.stub import Stub
from streaming.cli.app import app
from streaming.local.broker import EmbeddedBroker
from streaming.operations.resend import MAX_CHUNK_BYTES, chunks
from tests.conftest import MakeSettings, MakeTopic
from tests.unreadable_headers import write_unreadable

PATIENCE_MS = 20_000
HOUR_AGO_MS = int(time.time() * 1000) - 3_600_000
Headers = list[tuple[str, bytes | None]]


@dataclass
class Desk:
    """An application with dead letters, and the command that resends them."""

    settings: Settings
    broker: EmbeddedBroker

    def __post_init__(self) -> None:
        options = {"bootstrap.servers": self.broker.bootstrap, "compression.type": "lz4"}
        self._producer = Producer({**options, "transactional.id": f"{self.settings.application_id}:0"})
        self._producer.init_transactions(30)
        self._offsets = count(100)

    @property
    def input(self) -> str:
        return self.settings.topics.input[0]

    def add(self, *letters: dict[str, Any], commit: bool = True) -> list[str]:
        """Write dead letters as the job does, in a transaction; return their ids."""
        self._producer.begin_transaction()
        ids = []
        for letter in letters:
            identity = f"{letter.get('topic', self.input)}/{letter.get('input_partition', 0)}/{next(self._offsets)}"
            ids.append(identity)
            code = letter.get("code", "bad-deliver-after")
            service_headers = [("delayline-id", identity.encode()), ("delayline-error", code.encode())]
            service_headers.append(("delayline-error-text", f"{code}: why".encode()))
            published_ms = letter.get("published_ms", HOUR_AGO_MS)
            service_headers.append(("delayline-timestamp", str(published_ms).encode()))
            self._producer.produce(
                self.settings.topics.dead_letter,
                letter.get("value", b"v"),
                letter.get("key"),
                letter.get("partition", 0),
                headers=[*letter.get("headers", []), *service_headers],
            )
        assert self._producer.flush(30) == 0
        if commit:
            self._producer.commit_transaction(30)
        else:
            self._producer.abort_transaction(30)
        return ids

    def resend(self, *arguments: str) -> Result:
        topics = self.settings.topics
        sets = [
            f"kafka.bootstrap_servers={self.broker.bootstrap}",
            f"application_id={self.settings.application_id}",
            f"topics.input={','.join(topics.input)}",
            f"topics.output={topics.output}",
            f"topics.dead_letter={topics.dead_letter}",
        ]
        options = [part for one in sets for part in ("--set", one)]
        return CliRunner().invoke(app, ["resend", *arguments, *options], env={"DELAYLINE_CONFIG": None})

    def resent(self, *arguments: str) -> list[str]:
        """Resend, and return the first ids of the resent messages."""
        result = self.resend("--format", "json", *arguments)
        assert result.exit_code == 0, result.output
        return [json.loads(line)["id"] for line in result.stdout.splitlines()]

    def inputs(self, expected: int) -> list[Received]:
        """Return the `expected` records of the input topic, and one more if there is one."""
        with Subscriber(self.settings, self.input, from_beginning=True) as subscriber:
            records = list(subscriber.records(expected, PATIENCE_MS))
            assert len(records) == expected
            return records + list(subscriber.records(1, 300))


@pytest.fixture
def desk_of(make_settings: MakeSettings, broker: EmbeddedBroker) -> Callable[..., Desk]:
    """A function that makes the desk of an application with the given `--set` overrides."""

    def make(*overrides: str) -> Desk:
        settings = make_settings(*overrides)
        ensure_topics(settings, 3)
        return Desk(settings, broker)

    return make


@pytest.fixture
def desk(desk_of: Callable[..., Desk]) -> Desk:
    return desk_of()


def test_a_record_whose_headers_cannot_be_read_is_no_letter_and_stops_no_resend(desk: Desk) -> None:
    service_headers = [
        ("delayline-id", f"{desk.input}/0/7".encode()),
        ("delayline-error", b"bad-deliver-after"),
        ("delayline-error-text", b"why"),
        ("delayline-timestamp", b"%d" % HOUR_AGO_MS),
    ]
    write_unreadable(desk.broker.bootstrap, desk.settings.topics.dead_letter, b"v", headers=service_headers)
    ids = desk.add({}, {})
    assert desk.resent("--dry-run", "--partition", "0", "--offsets", "1-", "--unchecked") == ids
    assert desk.resent("--set-header", "deliver-after=10s") == ids


def test_a_letter_is_resent_as_it_was_published_except_for_the_changed_headers(desk: Desk) -> None:
    odd: Headers = [("a", None), ("deliver-after", b"ten"), ("a", b"\xff\x00"), ("", b""), ("drop", b"1")]
    (identity,) = desk.add({"headers": odd, "key": b"\xff", "value": b"\x00" * 1000, "input_partition": 2})
    (other,) = desk.add({"value": None, "input_partition": 1, "published_ms": HOUR_AGO_MS + 7})
    result = desk.resend("--set-header", "deliver-after=10s", "--drop-header", "drop", "--drop-header", "absent")
    assert (result.exit_code, result.stderr) == (0, "2 resent, 0 refused\n")
    assert f"{identity}  bad-deliver-after  {desk.input}/2/0" in result.stdout.splitlines()
    keyed, null = sorted(desk.inputs(2), key=lambda record: -record.partition)
    assert (keyed.partition, keyed.key, keyed.value) == (2, b"\xff", b"\x00" * 1000)
    assert keyed.timestamp_ms == HOUR_AGO_MS
    after = [("a", None), ("deliver-after", b"10s"), ("a", b"\xff\x00"), ("", b"")]
    assert keyed.headers == [*after, ("delayline-first-id", identity.encode())]
    assert (null.partition, null.key, null.value, null.timestamp_ms) == (1, None, None, HOUR_AGO_MS + 7)
    assert null.headers == [("deliver-after", b"10s"), ("delayline-first-id", other.encode())]


def test_no_letter_is_resent_twice_without_the_option_again(desk: Desk) -> None:
    first = desk.add({}, {"partition": 1})
    desk.add({}, commit=False)
    assert set(desk.resent()) == set(first)
    assert desk.resent() == []
    later = desk.add({"partition": 1}, {"partition": 2})
    assert set(desk.resent()) == set(later)
    assert len(desk.inputs(4)) == 4
    assert desk.resent("--again", "--id", first[0]) == [first[0]]
    assert desk.resent() == []
    assert len(desk.inputs(5)) == 5


def test_letters_that_were_not_chosen_can_be_resent_later(desk: Desk) -> None:
    codes = ["bad-deliver-at", "topic-not-allowed", "bad-deliver-at", "two-delays", "topic-not-allowed"]
    ids = desk.add(*({"code": code, "published_ms": HOUR_AGO_MS + at} for at, code in enumerate(codes)))
    assert desk.resent("--code", "topic-not-allowed") == [ids[1], ids[4]]
    assert desk.resent("--code", "topic-not-allowed", "--code", "two-delays") == [ids[3]]
    # Offset 5 is the commit marker of the transaction.
    assert desk.resent("--partition", "0", "--offsets", "1-9") == [ids[2]]
    assert desk.resent("--since", str(HOUR_AGO_MS + 1)) == []
    assert desk.resent("--since", "2h", "--until", str(HOUR_AGO_MS)) == []
    assert desk.resent("--since", "2h", "--until", "10m") == [ids[0]]
    assert desk.resent() == []
    assert {record.header("delayline-first-id") for record in desk.inputs(5)} == {each.encode() for each in ids}


def test_the_rest_can_be_skipped_for_good(desk: Desk) -> None:
    ids = desk.add({"code": "two-delays"}, {"code": "bad-deliver-at"}, {"code": "two-delays"})
    assert desk.resent("--code", "bad-deliver-at", "--skip-rest") == [ids[1]]
    assert desk.resent() == []
    assert desk.resent("--again", "--code", "two-delays") == [ids[0], ids[2]]


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


def test_a_whole_letter_whose_publisher_has_forged_a_stub_is_resent_with_that_header(desk: Desk) -> None:
    forged = Stub(None, 2, "0f" * 32, 3).to_header()
    desk.add({"headers": [forged, ("delayline-stub", None)], "value": None})
    assert len(desk.resent()) == 1
    (record,) = desk.inputs(1)
    assert [name for name, _ in record.headers] == ["delayline-stub", "delayline-first-id"]
    assert record.headers[0] == forged


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


def test_a_letter_that_would_expire_again_is_refused_unless_its_delay_counts_from_now(desk: Desk) -> None:
    (identity,) = desk.add({"code": "expired", "headers": [("deliver-after", b"1m")]})
    policy = ("--code", "expired", "--set", "policies.expire_after=10m")
    refused = desk.resend(*policy)
    assert (refused.exit_code, refused.stderr) == (1, "0 resent, 1 refused\n")
    assert "refused: expired: it could not be delivered until " in refused.stdout
    assert desk.inputs(0) == []
    assert desk.resent(*policy, "--stamp", "now") == [identity]
    assert len(desk.inputs(1)) == 1


def test_the_delay_of_a_letter_counts_from_its_publication(desk: Desk) -> None:
    published_ms = HOUR_AGO_MS - 60_000
    desk.add({"published_ms": published_ms, "headers": [("deliver-after", b"30m")], "code": "message-too-large"})
    assert len(desk.resent()) == 1
    (record,) = desk.inputs(1)
    assert record.timestamp_ms == published_ms
    assert [name for name, _ in record.headers] == ["deliver-after", "delayline-first-id"]


def test_a_dry_run_prints_the_letters_and_sends_nothing(desk: Desk) -> None:
    (identity,) = desk.add({})
    for _ in range(2):
        result = desk.resend("--dry-run")
        assert result.stdout == f"{identity}  bad-deliver-after  would be resent\n"
        assert result.stderr == "1 would be resent, 0 refused\n"
    assert desk.inputs(0) == []
    assert desk.resent() == [identity]


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


def test_records_that_are_not_letters_of_this_job_are_ignored(desk: Desk) -> None:
    desk.add({"topic": "of-another-job"})
    foreign = Producer({"bootstrap.servers": desk.broker.bootstrap})
    foreign.produce(desk.settings.topics.dead_letter, b"x", partition=0)
    assert foreign.flush(30) == 0
    ids = desk.add({})
    assert desk.resent() == ids
    assert len(desk.inputs(1)) == 1


def test_options_that_the_producer_cannot_use_are_wrong_settings(desk: Desk) -> None:
    for wrong, names in (("90000", "lease.period"), ("10000", "release.transaction_timeout")):
        result = desk.resend("--set", f"kafka.socket.timeout.ms={wrong}", "--set", "release.transaction_timeout=5s")
        assert result.exit_code == 2
        line = result.stderr.splitlines()[-1]
        assert line.startswith("error: bad-setting: [kafka]: ")
        assert "`socket.timeout.ms` must be set" in line
        assert names in line


def test_many_letters_are_sent_in_several_transactions(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.operations.resend.MAX_CHUNK_LETTERS", 7)
    ids = desk.add(*({"partition": number % 3, "code": "two-delays"} for number in range(100)))
    desk.add(*({"partition": number % 3} for number in range(10)))
    assert set(desk.resent("--code", "two-delays")) == set(ids)
    assert len(desk.resent()) == 10
    assert len(desk.inputs(110)) == 110


def test_a_chunk_is_bounded_by_the_memory_that_empty_headers_take_and_keeps_no_record_that_is_no_letter() -> None:
    service: Headers = [("delayline-id", b"in/0/1"), ("delayline-error", b"e"), ("delayline-error-text", b"why")]
    service.append(("delayline-timestamp", b"1"))
    many = [("", b"")] * 10_000
    letters = (Received("dead", 0, offset, 0, None, None, [*many, *service], 0) for offset in range(20))
    found = [[each.offset for each in chunk] for chunk in chunks(letters)]
    assert [offset for chunk in found for offset in chunk] == list(range(20))
    assert max(map(len, found)) < 10
    others = (Received("dead", 0, offset, 0, None, bytes(MAX_CHUNK_BYTES), [], 0) for offset in range(20))
    assert list(chunks(others)) == [[(0, offset, None) for offset in range(20)]]


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


def test_a_limit_of_the_client_stops_no_letter_that_its_input_topic_takes(desk: Desk) -> None:
    ids = desk.add({}, {"value": random.randbytes(5_000)})
    assert desk.resent("--set", "kafka.message.max.bytes=2000") == ids


def test_a_second_resend_ends_the_first_and_continues_at_its_position(desk: Desk) -> None:
    ids = desk.add({}, {})
    with closing(DeadLetterReader(desk.settings, range(3))) as reader:
        first = Resender(desk.settings, {})
        assert desk.resent() == ids
        with pytest.raises(PublishFailed, match="nothing of this transaction was resent"):
            first.send([Outgoing(desk.input, 0, HOUR_AGO_MS, None, b"late", [])], {0: (0, "")}, reader.group())
    assert desk.resent() == []
    assert [record.value for record in desk.inputs(2)] == [b"v", b"v"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--code", "bad"], "The codes are bad-cancel, "),
        (["--id", "in/0"], "write topic/partition/offset"),
        (["--id", "in/0/5"], "no such dead letter waits"),
        (["--partition", "3"], "has partitions 0 to 2"),
        (["--offsets", "1-2"], "--partition is missing"),
        (["--partition", "0", "--offsets", "a"], "write 10-20"),
        (["--partition", "0", "--offsets", "2-1"], "the last offset is before the first"),
        (["--since", "yesterday"], "--since 'yesterday': write epoch ms"),
        (["--since", "\udcff"], "write epoch ms"),
        (["--set-header", "x"], "write NAME=VALUE"),
        (["--set-header", "\udcff=1"], "write UTF-8"),
        (["--drop-header", "\udcff"], "write UTF-8"),
        (["--set-header", "delayline-id=x"], "are reserved"),
        (["--drop-header", "delayline-id"], "are reserved"),
        (["--drop-header", ""], "the name of the header is empty"),
        (["--set-header", "a=1", "--drop-header", "a"], "either --set-header or --drop-header"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_sent(desk: Desk, arguments: Sequence[str], message: str) -> None:
    refused = desk.resend(*arguments)
    assert refused.exit_code == 2
    assert "error: bad-usage: " in refused.stderr
    assert message in refused.stderr


def test_a_letter_whose_input_partition_no_longer_exists_goes_where_kafka_puts_it(desk: Desk) -> None:
    desk.add({"input_partition": 9, "key": b"k"})
    desk.resent()
    assert len(desk.inputs(1)) == 1
