"""The reader of a lane reports where its partitions end, with a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer

from conf.kafka.options import librdkafka_options
from sinks.topics.topic_ids import input_ids
from state.claims import Claim
from streaming.forward.lane import Lane, Place
from streaming.forward.lane_reader import LaneReader
from tests.eventually import assert_eventually
from tests.streaming.forward.bench import ForwardBench


@pytest.fixture
def reader(bench: ForwardBench) -> Iterator[LaneReader]:
    """A reader that is not assigned its partitions."""
    with closing(LaneReader(bench.settings, librdkafka_options(bench.settings.kafka))) as reader:
        yield reader


def _read(reader: LaneReader, bench: ForwardBench, *expected: tuple[Place, int]) -> None:
    """Read the input partitions from their beginnings, until they are read as far as expected."""
    places = [(bench.input, 0), (bench.input, 1)]
    reader.begin(Lane(Claim(epoch=1), places, input_ids(bench.settings)))
    known: dict[Place, int] = {}

    def is_read() -> bool:
        known.update({place: position for place, (position, _) in reader.read(0.2)[1].items()})
        return known == dict(expected)

    assert_eventually(is_read)


def test_the_reader_says_that_it_has_reached_the_end_of_an_empty_partition(
    bench: ForwardBench, reader: LaneReader
) -> None:
    bench.publish(2)
    _read(reader, bench, ((bench.input, 0), 2), ((bench.input, 1), 0))


def test_an_open_transaction_is_beyond_the_end_but_not_beyond_the_end_in_the_last_answer(
    bench: ForwardBench, reader: LaneReader
) -> None:
    place = (bench.input, 0)
    bench.publish(2)
    producer = Producer({"bootstrap.servers": bench.broker.bootstrap, "transactional.id": bench.input})
    producer.init_transactions()
    producer.begin_transaction()
    bench.publish(3, producer=producer)
    _read(reader, bench, (place, 2), ((bench.input, 1), 0))
    assert (reader.end(place), reader.known_end(place)) == (2, 5)
    producer.commit_transaction()
    # With the mark of the transaction's end.
    assert_eventually(lambda: reader.end(place) == 6)
