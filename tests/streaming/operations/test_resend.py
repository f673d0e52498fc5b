"""Resending dead letters to their input topics, against a real broker and without Spark."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing

import pytest
from confluent_kafka import Producer
from kafka.partitioner.default import murmur2

from conf.errors import PublishFailed
from sinks.resender import Outgoing, Resender
from sources.dead_letters.reader import DeadLetterReader
from sources.subscriber import Received
from state.stub import Stub
from streaming.operations.resend import MAX_CHUNK_BYTES, chunks
from tests.streaming.operations.letter_desk import HOUR_AGO_MS, Desk, Headers
from tests.unreadable_headers import write_unreadable


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


def test_a_whole_letter_whose_publisher_has_forged_a_stub_is_resent_with_that_header(desk: Desk) -> None:
    forged = Stub(None, 2, "0f" * 32, 3).to_header()
    desk.add({"headers": [forged, ("delayline-stub", None)], "value": None})
    assert len(desk.resent()) == 1
    (record,) = desk.inputs(1)
    assert [name for name, _ in record.headers] == ["delayline-stub", "delayline-first-id"]
    assert record.headers[0] == forged


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
        (["--set-header", "delayline-name=x"], "are reserved"),
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
    (record,) = desk.inputs(1)
    assert record.partition == (murmur2(b"k") & 0x7FFFFFFF) % 3
