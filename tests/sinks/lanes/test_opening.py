"""Opening and closing lanes, with a real broker, and with a cut after each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import pytest

from conf.errors import ApplicationHeld, DeliveryFailed, TopicMismatch
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.lanes import opening
from sinks.lanes.opening import close_lanes, open_lanes
from sinks.lanes.terms import read_terms, write_terms
from sinks.lanes.writer import LaneTaken, LaneWriter
from sinks.topics.topics import ensure_shards
from state.checkpoint.batch_settings import batch_settings_from
from state.checkpoint.origin import CheckpointOrigin, Offsets
from state.claims import Claim, Terms
from state.lanes import lane_of
from tests.conftest import Configure
from tests.sinks.lanes.conftest import IDS, Open, claim

_HERE = lane_of("in", 0, 2)


class Cut(Exception):
    """Stands for a crash."""


def holds() -> None:
    """The lease is held."""


def is_lost() -> None:
    raise ApplicationHeld("another process holds the lease")


@pytest.fixture
def terms(settings: Settings) -> Terms:
    """Terms with two lanes, in epoch 1."""
    own = batch_settings_from(settings, {"out": 3}, (0, 1), CheckpointOrigin("c", 1, 2))
    return Terms(1, 2, own)


def newest_terms(settings: Settings) -> Terms | None:
    return read_terms(settings, librdkafka_options(settings.kafka))


def newest_claim(writer: LaneWriter) -> Claim:
    assert writer.claim is not None
    return writer.claim


def newest_claims(writers: Mapping[int, LaneWriter]) -> dict[int, Claim]:
    return {lane: writer.claim for lane, writer in writers.items() if writer.claim is not None}


def begin(settings: Settings, terms: Terms, positions: Offsets) -> None:
    """Close the lanes, and open them by `terms`."""
    open_lanes(settings, close_lanes(settings, holds), terms, positions, IDS, holds)


def cut_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int = 1) -> None:
    """Crash in the place of the n-th call of a function."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = iter(range(1, 1_000))

    def cut(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            raise Cut
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, cut)


def test_the_newest_terms_count(settings: Settings, terms: Terms) -> None:
    assert newest_terms(settings) is None
    for lanes in (2, 0, 1):
        write_terms(settings, replace(terms, lanes=lanes), holds)
        assert newest_terms(settings) == replace(terms, lanes=lanes)


def test_terms_of_very_many_output_topics_are_written_if_the_topic_has_room(
    settings: Settings, terms: Terms, configure: Configure
) -> None:
    partitions = {f"an-output-topic-with-a-long-name-{number:05}": 12 for number in range(30_000)}
    large = replace(terms, settings=replace(terms.settings, partitions=partitions))
    write_terms(settings, large, holds)
    assert newest_terms(settings) == large
    configure(settings.claims_topic, **{"max.message.bytes": "1048588"})
    with pytest.raises(TopicMismatch, match=rf"max.message.bytes of topic {settings.claims_topic} .*Set it to 1"):
        write_terms(settings, large, holds)


def test_without_the_lease_nothing_is_written_and_nobody_fenced(
    settings: Settings, terms: Terms, open_writer: Open
) -> None:
    begin(settings, terms, {"in": {"0": 5}})
    owner = open_writer(_HERE)
    with pytest.raises(ApplicationHeld):
        close_lanes(settings, is_lost)
    with pytest.raises(ApplicationHeld):
        write_terms(settings, replace(terms, lanes=0), is_lost)
    assert newest_terms(settings) == terms
    owner.write(claim(owner.claim, 6))
    writers = close_lanes(settings, holds)
    with pytest.raises(ApplicationHeld):
        open_lanes(settings, writers, replace(terms, lanes=1), {"in": {"0": 50}}, IDS, is_lost)
    assert newest_terms(settings) == replace(terms, lanes=0)
    found = newest_claim(open_writer(_HERE))
    assert found.positions == {"in": {"0": 6}}


@pytest.mark.parametrize(("finds", "error"), [(is_lost, ApplicationHeld), (holds, DeliveryFailed)])
def test_a_job_that_hung_while_another_opened_the_lanes_overwrites_no_claim(
    settings: Settings, terms: Terms, open_writer: Open, finds: Callable[[], None], error: type[Exception]
) -> None:
    begin(settings, terms, {"in": {"0": 5}})
    writers = close_lanes(settings, holds)
    begin(settings, terms, {"in": {"0": 5}})
    owner = open_writer(_HERE)
    owner.write(claim(owner.claim, 20))
    checks = chain([holds], repeat(finds))

    def check_lease() -> None:
        next(checks)()

    with pytest.raises(error):
        open_lanes(settings, writers, terms, {"in": {"0": 5}}, IDS, check_lease)
    assert newest_claim(open_writer(_HERE)).positions == {"in": {"0": 20}}


def test_a_job_that_hung_while_it_wrote_terms_opens_no_lane_that_another_has_closed(
    settings: Settings, terms: Terms
) -> None:
    write_terms(settings, replace(terms, lanes=0), holds)

    def hang() -> None:
        close_lanes(settings, holds)

    with pytest.raises(DeliveryFailed, match="could not write the terms of forwarders"):
        write_terms(settings, terms, hang)
    assert newest_terms(settings) == replace(terms, lanes=0)


def test_lanes_that_were_never_open_begin_at_the_positions(settings: Settings, terms: Terms, open_writer: Open) -> None:
    assert newest_claims(close_lanes(settings, holds)) == {}
    positions = {"in": {str(number): 10 + number for number in range(8)}, "former": {"0": 3}}
    begin(settings, terms, positions)
    assert newest_terms(settings) == terms
    for lane in range(2):
        found = newest_claim(open_writer(lane))
        assert (found.epoch, found.taken) == (1, {})
        own = {str(number): 10 + number for number in range(8) if lane_of("in", number, 2) == lane}
        assert own
        assert found.positions == {"in": own}


def test_owners_are_fenced_when_lanes_are_closed_and_know_it_when_they_come_back(
    settings: Settings, terms: Terms, open_writer: Open
) -> None:
    begin(settings, terms, {"in": {"0": 5}})
    owner = open_writer(_HERE)
    owner.write(newest := claim(owner.claim, 9, 7))
    closed = newest_claims(close_lanes(settings, holds))
    assert closed[_HERE] == newest
    assert closed.keys() == {0, 1}
    with pytest.raises(LaneTaken):
        owner.write(claim(newest, 12))
    again = open_writer(_HERE)
    found = newest_terms(settings)
    assert found is not None
    assert (again.claim, found.lanes) == (newest, 0)
    # Again changes nothing.
    assert newest_claims(close_lanes(settings, holds)) == closed


def test_lanes_are_opened_again_behind_what_is_claimed_and_what_batches_took(
    settings: Settings, terms: Terms, open_writer: Open
) -> None:
    begin(settings, terms, {})
    owner = open_writer(_HERE)
    assert owner.claim is not None
    owner.write(replace(claim(owner.claim, 9, 7), due_before_ms=77))
    close_lanes(settings, holds)
    for at, expected in ((4, 9), (30, 30), (20, 30)):
        begin(settings, terms, {"in": {"0": at}})
        found = newest_claim(close_lanes(settings, holds)[_HERE])
        assert (found.positions["in"]["0"], found.due_before_ms, found.taken) == (expected, 77, {})


def test_a_new_epoch_begins_where_it_is_told(settings: Settings, terms: Terms, open_writer: Open) -> None:
    begin(settings, terms, {"in": {"0": 90}})
    begin(settings, replace(terms, epoch=2), {"in": {"0": 4}})
    found = newest_claim(open_writer(_HERE))
    assert (found.epoch, found.positions) == (2, {"in": {"0": 4}})


def test_a_partition_that_moves_to_another_lane_goes_on_there(
    settings: Settings, terms: Terms, open_writer: Open
) -> None:
    begin(settings, terms, {})
    owner = open_writer(_HERE)
    owner.write(claim(owner.claim, 9, 7))
    close_lanes(settings, holds)
    lanes = next(count for count in range(3, 20) if lane_of("in", 0, count) != _HERE)
    ensure_shards(settings, lanes)
    begin(settings, replace(terms, lanes=lanes), {"in": {"0": 2}})
    moved = newest_claim(open_writer(lane_of("in", 0, lanes)))
    assert moved.positions == {"in": {"0": 9}}
    stays = newest_claim(open_writer(_HERE))
    assert stays.position("in", 0, IDS["in"]) == 9


def test_opening_fences_a_lane_again_only_if_a_forwarder_has_come_meanwhile(
    settings: Settings, terms: Terms, open_writer: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = close_lanes(settings, holds)
    # It has looked at the terms before.
    forwarder = open_writer(_HERE)
    fenced: list[int] = []

    def fence(settings: Settings, options: Mapping[str, str], lane: int) -> LaneWriter:
        fenced.append(lane)
        return LaneWriter(settings, options, lane)

    monkeypatch.setattr(opening, "LaneWriter", fence)
    open_lanes(settings, writers, terms, {"in": {"0": 5}}, IDS, holds)
    assert fenced == [_HERE]
    with pytest.raises(LaneTaken):
        forwarder.write(claim(forwarder.claim, 9, 7))
    assert newest_claim(open_writer(_HERE)).positions == {"in": {"0": 5}}


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (opening, "read_terms", 1),
        (opening, "write_terms", 1),
        (opening, "_fence_all", 1),
        (opening, "LaneWriter", 1),
        (opening, "LaneWriter", 2),
    ],
)
def test_closing_goes_on_after_a_cut_at_any_step(
    settings: Settings, terms: Terms, open_writer: Open, owner: Any, name: str, call: int
) -> None:
    begin(settings, terms, {"in": {"0": 5}})
    forwarder = open_writer(_HERE)
    with pytest.MonkeyPatch.context() as patched:
        cut_at(patched, owner, name, call)
        with pytest.raises(Cut):
            close_lanes(settings, holds)
    # Until it is done, a forwarder may go on, or may not: but if it does, what it claims counts.
    last = forwarder.claim
    try:
        forwarder.write(claim(forwarder.claim, 9, 7))
        last = forwarder.claim
    except LaneTaken:
        assert name == "LaneWriter"
    assert close_lanes(settings, holds)[_HERE].claim == last
    with pytest.raises(LaneTaken):
        forwarder.write(claim(last, 20))
    found = newest_terms(settings)
    assert found is not None
    assert found.lanes == 0


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (LaneWriter, "write", 1),
        (LaneWriter, "write", 2),
        (opening, "write_terms", 1),
    ],
)
@pytest.mark.parametrize("was_open", [False, True])
def test_opening_goes_on_after_a_cut_at_any_step(
    settings: Settings, terms: Terms, open_writer: Open, owner: Any, name: str, call: int, was_open: bool
) -> None:
    if was_open:
        begin(settings, terms, {"in": {"0": 5}})
    writers = close_lanes(settings, holds)
    with pytest.MonkeyPatch.context() as patched:
        cut_at(patched, owner, name, call)
        with pytest.raises(Cut):
            open_lanes(settings, writers, terms, {"in": {"0": 7}}, IDS, holds)
    # Forwarders take nothing yet.
    found = newest_terms(settings)
    assert found is None or found.lanes == 0
    # The batches went on meanwhile.
    begin(settings, terms, {"in": {"0": 8}})
    assert newest_terms(settings) == terms
    newest = [newest_claim(open_writer(lane)) for lane in range(2)]
    assert [each.epoch for each in newest] == [1, 1]
    assert newest[_HERE].positions == {"in": {"0": 8}}
