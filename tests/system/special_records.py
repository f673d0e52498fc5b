"""Records that hypothesis chooses: they cancel, replace, have names, or are in the form of other schedulers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from streaming.judge.record import Published
from tests.system.conftest import Application
from tests.system.ledger import Header, Ledger
from tests.system.random_records import CHANCES, HEADERS, NONSENSE, VALUES

# Headers that cancel, replace and name, and headers of other schedulers, for separate input topics.
_NOT_TEXT = st.binary(max_size=50).map(lambda value: b"\xff" + value + b"\xff")
_NAME_VALUES = st.binary(min_size=1, max_size=1_024)
# Headers that are errors in a topic without names: some with any value, and some unless they have the id of a message.
_BAD = st.one_of(
    st.tuples(st.sampled_from(["delayline-name", "delayline-cancel-name"]), VALUES).map(lambda header: [header]),
    st.tuples(st.sampled_from(["delayline-cancel", "delayline-replaces"]), NONSENSE).map(lambda header: [header]),
    st.tuples(st.sampled_from(["delayline-cancel", "delayline-replaces"]), st.integers(2, 200)).map(
        lambda header: [(header[0], b"a/0/1")] * header[1]
    ),
    NONSENSE.map(lambda value: [("delayline-replaces", b"a/0/1"), ("delayline-if", value)]),
    st.permutations([("delayline-cancel", b"a/0/1"), ("delayline-replaces", b"a/0/1")]).map(list),
)
# These headers have no effect in a message that does not replace another.
_IDLE = st.lists(st.tuples(st.sampled_from(["delayline-if", "delayline-operator"]), VALUES), max_size=3)
# The presets that share a topic. First the headers that say when: `_INSTANTS` in epoch ms, the others in ms from the
# record's timestamp. Then the headers that name the output topic, and the headers that are errors unless they are text.
_PRESETS = "rabbitmq,spring-retry,rocketmq,nats,activemq"
_WHEN: dict[str, Callable[[int], bytes]] = {
    "x-delay": lambda at_ms: b"%d" % at_ms,
    "AMQ_SCHEDULED_DELAY": lambda at_ms: b"%d" % at_ms,
    "AMQ_SCHEDULED_PERIOD": lambda at_ms: b"%d" % at_ms,
    "_AMQ_SCHED_DELIVERY": lambda at_ms: b"%d" % at_ms,
    "AMQ_SCHEDULED_TIME": lambda at_ms: b"%d" % at_ms,
    "TIMER_DELAY_MS": lambda at_ms: b"%d" % at_ms,
    "TIMER_DELIVER_MS": lambda at_ms: b"%d" % at_ms,
    "__STARTDELIVERTIME": lambda at_ms: b"%d" % at_ms,
    "retry_topic-backoff-timestamp": lambda at_ms: at_ms.to_bytes(8),
    "Nats-Schedule": lambda at_ms: b"@at " + _rfc_3339(at_ms),
}
_INSTANTS = {
    "TIMER_DELIVER_MS", "__STARTDELIVERTIME", "_AMQ_SCHED_DELIVERY", "AMQ_SCHEDULED_TIME",
    "retry_topic-backoff-timestamp", "Nats-Schedule",
}  # fmt: skip
_TARGETS = ["REAL_TOPIC", "Nats-Schedule-Target"]
_WRONG = [*_WHEN, *_TARGETS, "AMQ_SCHEDULED_CRON", "DELAY", "TIMER_DELAY_SEC"]
_ENVELOPES = {
    "etf1": ("scheduler-epoch", "scheduler-target-topic", "scheduler-target-key"),
    "karafka": ("schedule_target_epoch", "schedule_target_topic", "schedule_target_key"),
}


class Special(NamedTuple):
    """A record with headers of a kind, and the values that these need. Some values may have no effect."""

    kind: str
    key: bytes | None
    value: bytes | None
    others: list[Header]
    delay_ms: int
    bad: list[Header]
    idle: list[Header]
    name: bytes
    nonsense: bytes
    chance: Random


_SPECIALS = st.builds(
    Special,
    st.sampled_from(["bad", "idle", "cancel", "waiting", "always", "named", "cancel-name", "bad-name", "preset",
                     "bad-preset", "etf1", "karafka", "bad-envelope", "cancel-envelope"]),
    VALUES, VALUES, HEADERS, st.integers(0, 4_000), _BAD, _IDLE, _NAME_VALUES, _NOT_TEXT, CHANCES,
)  # fmt: skip


def _rfc_3339(at_ms: int) -> bytes:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").encode()


class SpecialTopics:
    """The input topics of an application for records with names, and for records with the headers of presets."""

    def __init__(self, topic: str) -> None:
        self.named, self.presets = f"{topic}-named", f"{topic}-presets"
        self.envelopes = {preset: f"{topic}-{preset}" for preset in _ENVELOPES}
        every = [topic, self.named, self.presets, *self.envelopes.values()]
        own = (f"presets.{each}={preset}" for preset, each in self.envelopes.items())
        self.overrides = [
            f"topics.input={','.join(every)}", f"policies.{self.named}.names=header",
            f"presets.{self.presets}={_PRESETS}", *own,
        ]  # fmt: skip


def publish_specials(ledger: Ledger, application: Application, topics: SpecialTopics) -> None:
    """Publish records that cancel, replace and have names, and records in the form of other schedulers' publishers."""
    before = set(ledger.sent)

    @given(st.lists(_SPECIALS, min_size=3, max_size=12))
    @settings(max_examples=50, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    def publish(records: list[Special]) -> None:
        ledger.flush()
        # No name is judged that is cancelled by an id as well.
        targets = sorted(ledger.sent.keys() - before - ledger.named.keys())
        for record in records:
            _publish_special(ledger, application, topics, record, targets)

    publish()


def _publish_special(
    ledger: Ledger, application: Application, topics: SpecialTopics, record: Special, targets: list[str]
) -> None:
    """Publish a record of a kind. `targets` are the ids of messages that may be cancelled or replaced."""
    kind, after = record.kind, ("deliver-after", b"%d" % record.delay_ms)
    out, dead = application.output, application.dead
    if kind in ("cancel", "waiting", "always") and not targets:
        kind = "idle"

    def mixed(*own: Header) -> list[Header]:
        headers = [*record.others, *own]
        record.chance.shuffle(headers)
        return headers

    def publish(topic: str, *own: Header, to: str = out, value: bytes | None = record.value, **more: object) -> None:
        ledger.publish(topic, value, mixed(*own), key=record.key, output=to, **more)  # type: ignore[arg-type]

    if kind == "bad":
        publish(application.input, *record.bad, to=dead)
    elif kind == "idle":
        publish(application.input, after, *record.idle, delay_ms=record.delay_ms)
    elif kind == "cancel":
        # A cancel request ignores these headers.
        nothing = [("deliver-at", record.nonsense), ("deliver-to", record.nonsense), *record.idle]
        ledger.cancel(record.chance.choice(targets), more=mixed(*nothing))
    elif kind in ("waiting", "always"):
        operator = ("delayline-operator", record.name)
        old = record.chance.choice(targets)
        publish(
            application.input, after, operator, delay_ms=record.delay_ms, replaces=old, condition=kind,
            partition=int(old.split("/")[1]), expected=lambda sent: _without(sent, operator),
        )  # fmt: skip
    elif kind in ("named", "cancel-name"):
        name = record.name[:1] if len(record.name) % 2 else record.name
        holds, partition = f"{topics.named} {name.hex()}", sum(name) % 2
        if kind == "named":
            named = ("delayline-name", name)
            publish(topics.named, after, named, delay_ms=record.delay_ms, holds=holds, partition=partition)
        else:
            ledger.cancel_by_name(topics.named, holds, mixed(("delayline-cancel-name", name)), partition)
    elif kind == "bad-name":
        both: list[Header] = [("delayline-name", record.name), ("delayline-replaces", b"a/0/1")]
        wrong: list[list[Header]] = [
            both, [("delayline-name", b"")], [("delayline-name", None)], [("delayline-name", b"n" * 1_025)],
            [("delayline-name", b"n")] * 2, [("delayline-cancel-name", b"")], [("delayline-cancel-name", b"n")] * 2,
        ]  # fmt: skip
        publish(topics.named, *record.chance.choice(wrong), to=dead)
    elif kind in ("preset", "bad-preset"):
        _publish_preset(publish, topics.presets, out, dead, record)
    else:
        _publish_envelope(ledger, publish, topics, out, dead, record)


def _publish_preset(publish: Callable[..., None], topic: str, out: str, dead: str, record: Special) -> None:
    """Publish a record of one of the presets that share a topic."""
    now_ms = time.time_ns() // 1_000_000
    when = record.chance.choice(sorted(_WHEN))
    at_ms = now_ms + record.delay_ms if when in _INSTANTS else record.delay_ms
    # Zero has no effect in ActiveMQ.
    header = (when, _WHEN[when](at_ms))
    if record.kind == "preset":
        target = (record.chance.choice(_TARGETS), out.encode())
        due = {"deliver_at_ms": at_ms} if when in _INSTANTS else {"delay_ms": at_ms}
        publish(topic, header, target, **due)
    else:
        wrong = record.chance.choice(_WRONG)
        publish(topic, *([header] if wrong in _TARGETS else []), (wrong, record.nonsense), to=dead)


def _publish_envelope(
    ledger: Ledger, publish: Callable[..., None], topics: SpecialTopics, out: str, dead: str, record: Special
) -> None:
    """Publish a record of a preset that has the message's own key in a header, and its name in the record's key."""
    preset = record.kind if record.kind in _ENVELOPES else record.chance.choice(sorted(_ENVELOPES))
    topic, (epoch, target, target_key) = topics.envelopes[preset], _ENVELOPES[preset]
    partition = sum(record.key or b"") % 2
    holds = f"{topic} {record.key.hex()}" if record.key else None
    at_s = time.time_ns() // 1_000_000_000 + record.delay_ms // 1_000
    version: list[Header] = [("schedule_schema_version", b"1.0.0")] if preset == "karafka" else []
    where: list[Header] = [(target, out.encode()), (target_key, record.name), *version]
    # A record of etf1 without a value is a cancel.
    value = record.value or b"v"
    if record.kind == "bad-envelope":
        publish(topic, (epoch, record.nonsense), *where, to=dead, value=value)
    elif record.kind != "cancel-envelope":
        publish(
            topic, (epoch, b"%d" % at_s), *where, value=value, deliver_at_ms=at_s * 1_000, holds=holds,
            partition=partition, expected=lambda sent: _opened(preset, sent, record.name),
        )  # fmt: skip
    elif holds is None:
        is_etf1 = preset == "etf1"
        if record.key is None:
            publish(
                topic, *([] if is_etf1 else [("schedule_source_type", b"cancel")]), to=dead,
                value=None if is_etf1 else value,
            )  # fmt: skip
    elif preset == "etf1":
        ledger.cancel_by_name(topic, holds, record.others, partition, record.key, None)
    else:
        ledger.cancel_by_name(
            topic, holds, [*record.others, ("schedule_source_type", b"cancel")], partition, record.key
        )


def _without(sent: Published, header: Header) -> Published:
    return replace(sent, headers=tuple(each for each in sent.headers if each != header))


def _opened(preset: str, sent: Published, key: bytes) -> Published:
    """Return what must be delivered for a record that came in an envelope."""
    topic, partition, offset = sent.source
    if preset == "etf1":
        seconds = str(sent.timestamp_ms // 1_000).encode()
        origin: list[Header] = [
            ("scheduler-timestamp", seconds), ("scheduler-key", sent.key), ("scheduler-topic", topic.encode())
        ]  # fmt: skip
    else:
        origin = [
            ("schedule_source_topic", topic.encode()), ("schedule_source_partition", str(partition).encode()),
            ("schedule_source_offset", str(offset).encode()), ("schedule_source_key", sent.key),
        ]  # fmt: skip
    # A record without a key has no header that would have it.
    added = tuple(header for header in origin if header[1] is not None)
    return replace(sent, key=key, headers=(*sent.headers, *added))
