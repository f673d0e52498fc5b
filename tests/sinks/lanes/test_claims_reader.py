"""Following the claims of all lanes, from where they matter, and deleting those that do not."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from conf.errors import CheckpointMismatch
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.lanes.claims_reader import ClaimsReader
from sinks.lanes.deletion import delete_claims
from sinks.lanes.writer import LaneWriter
from state.checkpoint.origin import Offsets
from state.claims import Claim
from state.lanes import partition_of_lane
from tests.eventually import assert_eventually
from tests.sinks.lanes.conftest import IDS, Open, claim

Read = Callable[..., dict[int, list[Claim]]]


@pytest.fixture
def read(settings: Settings) -> Read:
    """A function that returns the claims from where offsets `needed` are decided, by lane, once all are visible."""

    def claims(newest: Iterable[LaneWriter], needed: Offsets, epoch: int = 1) -> dict[int, list[Claim]]:
        ends = {writer.lane: writer.claim for writer in newest}
        with closing(ClaimsReader(settings, librdkafka_options(settings.kafka), needed, IDS, epoch)) as reader:
            found = read_there(reader)
            follow(reader, found, ends)
        return found

    return claims


def read_there(reader: ClaimsReader) -> dict[int, list[Claim]]:
    """Return the claims that are there, by lane."""
    found: dict[int, list[Claim]] = {}
    for lane, each in reader.read_there():
        found.setdefault(lane, []).append(each)
    return found


def follow(reader: ClaimsReader, found: dict[int, list[Claim]], ends: dict[int, Claim | None]) -> None:
    """Read up to the claim of each lane in `ends`."""

    def is_done() -> bool:
        for lane, each in reader.read(0.5):
            found.setdefault(lane, []).append(each)
        return all(found.get(lane, [None])[-1] == each for lane, each in ends.items())

    assert_eventually(is_done, 30)


def write_all(writer: LaneWriter, positions: Iterable[int]) -> list[Claim]:
    """Write a claim for each position of in/0, which takes the offset before; return them."""
    written = []
    for position in positions:
        writer.write(claim(writer.claim, position, position - 1))
        assert writer.claim is not None
        written.append(writer.claim)
    return written


def low_offset(settings: Settings, lane: int) -> int:
    options = librdkafka_options(settings.kafka) | {"group.id": "test"}
    with closing(Consumer(options)) as consumer:
        low, _ = consumer.get_watermark_offsets(TopicPartition(settings.claims_topic, partition_of_lane(lane)), 10)
        return int(low)


def test_all_claims_are_read_in_order_and_what_comes_after_them(settings: Settings, open_writer: Open) -> None:
    first, second = open_writer(0), open_writer(1)
    of_first, of_second = write_all(first, range(1, 6)), write_all(second, [7, 9])
    with closing(ClaimsReader(settings, librdkafka_options(settings.kafka), {}, IDS, 1)) as reader:
        found = read_there(reader)
        follow(reader, found, {0: first.claim, 1: second.claim})
        assert found == {0: of_first, 1: of_second}
        assert reader.read(0.01) == []
        of_first += write_all(first, [20])
        # A new owner. The owner before has left a transaction open, or not.
        of_second += write_all(open_writer(1), [30])
        follow(reader, found, {0: of_first[-1], 1: of_second[-1]})
    assert found == {0: of_first, 1: of_second}


@pytest.mark.parametrize("needed", [0, 1, 49, 50, 51, 52, 53, 108, 109, 110, 500])
def test_reading_begins_with_the_last_claim_that_does_not_matter(open_writer: Open, read: Read, needed: int) -> None:
    writer = open_writer()
    # Offsets 0 to 9 at first, and 50 to 109 one by one.
    written = write_all(writer, [10, *range(50, 60)])
    # Other owners: records that no reader sees lie between the claims.
    writer = open_writer()
    written += write_all(writer, range(60, 111))
    found = read([writer], {"in": {"0": needed}})[0]
    matter = [each for each in written if each.position("in", 0, "A") > needed]
    before = [each for each in written if each.position("in", 0, "A") <= needed][-1:]
    assert found == before + matter


def test_all_that_is_there_comes_first_in_all_lanes(settings: Settings, open_writer: Open) -> None:
    writers = [open_writer(lane) for lane in range(2)]
    expected = {0: write_all(writers[0], range(1, 200)), 1: write_all(writers[1], [4])}
    # As soon as the last commit is visible.
    assert open_writer(0).claim == expected[0][-1]
    with closing(ClaimsReader(settings, librdkafka_options(settings.kafka), {"in": {"0": 50}}, IDS, 1)) as reader:
        assert read_there(reader) == {0: expected[0][49:], 1: expected[1]}
        assert reader.read(0.2) == []


def test_no_claim_is_lost_or_comes_twice_while_owners_write(settings: Settings, open_writer: Open) -> None:
    writers = [open_writer(lane) for lane in range(2)]
    with ThreadPoolExecutor(2) as threads:
        written = [threads.submit(write_all, writer, range(1, 151)) for writer in writers]
        assert_eventually(lambda: all(writer.claim is not None for writer in writers))
        with closing(ClaimsReader(settings, librdkafka_options(settings.kafka), {}, IDS, 1)) as reader:
            found = read_there(reader)
            while not all(each.done() for each in written):
                for lane, own in reader.read(0.01):
                    found.setdefault(lane, []).append(own)
            expected = {lane: each.result() for lane, each in enumerate(written)}
            follow(reader, found, {lane: own[-1] for lane, own in expected.items()})
    assert found == expected


def test_the_reader_keeps_none_of_the_claims_that_are_there(settings: Settings, open_writer: Open) -> None:
    write_all(open_writer(), range(1, 101))
    read: list[weakref.ref[Claim]] = []
    with closing(ClaimsReader(settings, librdkafka_options(settings.kafka), {}, IDS, 1)) as reader:
        for _, each in reader.read_there():
            read.append(weakref.ref(each))
            # This one, and the one before while this one was read.
            assert sum(known() is not None for known in read) <= 2
    assert len(read) == 100


def test_claims_of_an_earlier_epoch_do_not_matter_however_far_they_were(open_writer: Open, read: Read) -> None:
    writer = open_writer()
    write_all(writer, range(1_000, 1_010))
    last = writer.claim
    writer.write(Claim(epoch=2))
    later = write_all(writer, range(1, 30))
    assert last is not None
    assert read([writer], {"in": {"0": 20}}, epoch=2)[0] == later[19:]
    assert read([writer], {}, epoch=2)[0][:3] == [Claim(epoch=2), *later[:2]]


def test_a_partition_that_nobody_has_read_needs_all_claims_on_it(open_writer: Open, read: Read) -> None:
    writer = open_writer()
    written = write_all(writer, [5, 6, 7])
    assert read([writer], {"in": {"1": 100}})[0] == written


def test_a_claim_that_a_stranger_has_written_is_an_error(settings: Settings) -> None:
    producer = Producer(librdkafka_options(settings.kafka))
    producer.produce(settings.claims_topic, b"{}", partition=partition_of_lane(0))
    assert producer.flush(30) == 0
    with pytest.raises(CheckpointMismatch, match="is not a claim"):
        ClaimsReader(settings, librdkafka_options(settings.kafka), {}, IDS, 1)


def test_deletion_leaves_what_may_matter_and_the_newest_claim(
    settings: Settings, open_writer: Open, read: Read
) -> None:
    options = librdkafka_options(settings.kafka)
    writer, idle = open_writer(0), open_writer(1)
    written = write_all(writer, range(1, 101))
    (only,) = write_all(idle, [5])
    before = low_offset(settings, 0)
    delete_claims(settings, options, {"in": {"0": 0}}, IDS, 1)
    assert (before, low_offset(settings, 0)) == (0, 0)
    delete_claims(settings, options, {"in": {"0": 60}}, IDS, 1)
    assert read([writer, idle], {}) == {0: written[59:], 1: [only]}
    assert low_offset(settings, 0) > 0
    # Nothing new.
    delete_claims(settings, options, {"in": {"0": 60}}, IDS, 1)
    assert read([writer, idle], {}) == {0: written[59:], 1: [only]}
    delete_claims(settings, options, {"in": {"0": 10_000}}, IDS, 1)
    assert read([writer, idle], {}) == {0: written[-1:], 1: [only]}
    # And the next owner finds it.
    assert open_writer(0).claim == written[-1]
    assert open_writer(1).claim == only
