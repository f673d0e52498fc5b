"""The judge reads claims and staged messages of forwarders as the service writes them: values, and a real broker."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from sinks.ready_log.chunk import chunk_record
from state.claims import Claim
from streaming.judge.acceptance import Held
from streaming.judge.checkpoint_watch import CheckpointWatch
from streaming.judge.claims_watch import ClaimsWatch
from streaming.judge.forwarded import Forwarded
from streaming.judge.record import Published
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeTopic
from tests.eventually import assert_eventually
from tests.messages import messages

_IDS = {"a": "id-a", "b": "id-b"}


def _chunk(*offsets: int) -> bytes:
    value, _ = chunk_record(messages({"topic": "a", "partition": 1, "offset": offset} for offset in offsets))
    return value


@given(st.lists(st.dictionaries(st.sampled_from("ab"), st.lists(st.booleans(), max_size=70), max_size=2), max_size=4))
def test_claims_name_the_offsets_that_their_owners_took(rounds: list[dict[str, list[bool]]]) -> None:
    forwarded, claim = Forwarded(), Claim(epoch=1)
    expected: set[tuple[str, int, int]] = set()
    for decisions in rounds:
        reached, taken = {}, {}
        for topic, own in decisions.items():
            first = claim.position(topic, 3, _IDS[topic])
            reached[topic, 3] = first + len(own)
            taken[topic, 3] = [first + number for number, is_taken in enumerate(own) if is_taken]
            expected |= {(topic, 3, offset) for offset in taken[topic, 3]}
        claim = claim.next("owner", reached, taken, _IDS)
        forwarded.add_claim(claim.to_bytes())
    assert forwarded.sources == expected


def test_a_claim_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 1, and not 2"):
        Forwarded().add_claim(Claim(epoch=1).to_bytes().replace(b'"format":1', b'"format":2'))


def test_a_message_is_staged_when_its_chunk_was_first_seen() -> None:
    forwarded = Forwarded()
    forwarded.add_chunk(_chunk(5, 6), 1_000)
    forwarded.add_chunk(_chunk(6, 7), 2_000)
    assert forwarded.seen_ms == {("a", 1, 5): 1_000, ("a", 1, 6): 1_000, ("a", 1, 7): 2_000}


def test_the_watch_follows_claims_and_chunks_and_ignores_terms_and_aborted_ones(
    broker: EmbeddedBroker, make_topic: MakeTopic, tmp_path: Path
) -> None:
    claims, near = make_topic(3), make_topic(2)
    writer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": claims})
    writer.init_transactions(30)
    first = Claim(epoch=1).next("owner", {("a", 1): 10}, {("a", 1): [4, 5]}, _IDS)
    lost = Claim(epoch=1).next("owner", {("a", 1): 10}, {("a", 1): [7]}, _IDS)
    begun_ms = time.time_ns() // 1_000_000
    with CheckpointWatch(tmp_path, ClaimsWatch(broker.bootstrap, claims, near)) as watch:
        for claim, offsets, end in (
            (lost, (7,), writer.abort_transaction),
            (first, (4, 5), writer.commit_transaction),
        ):
            writer.begin_transaction()
            writer.produce(claims, b"terms", partition=0)
            writer.produce(near, _chunk(*offsets), partition=1)
            writer.produce(claims, claim.to_bytes(), partition=2)
            assert writer.flush(30) == 0
            end(30)
        watch.drain()
        done_ms = time.time_ns() // 1_000_000
        acceptance = watch.acceptance()

    def message(offset: int, due_ms: int) -> Published:
        return Published(f"a/1/{offset}", 0, None, b"", (), "out", due_ms)

    assert [acceptance.is_forwarded(message(offset, 0)) for offset in (4, 5, 7)] == [True, True, False]
    assert begun_ms <= (acceptance.staged_ms(message(4, 0)) or 0) <= done_ms
    assert acceptance.held(message(5, done_ms + 300)) is Held.AMONG_ALL
    assert acceptance.held(message(5, begun_ms + 299)) is Held.NOT


def test_an_unreadable_claim_is_an_error_for_the_caller(
    broker: EmbeddedBroker, make_topic: MakeTopic, tmp_path: Path
) -> None:
    claims = make_topic(2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(claims, b"nonsense", partition=1)
    assert producer.flush(30) == 0

    def fails() -> bool:
        try:
            watch.acceptance()
        except ValueError:
            return True
        return False

    with CheckpointWatch(tmp_path, ClaimsWatch(broker.bootstrap, claims, make_topic(1))) as watch:
        assert_eventually(fails)
