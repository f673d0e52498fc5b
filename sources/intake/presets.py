"""Presets: the headers in which publishers of other schedulers say when and where.

An input topic has a preset by the settings (`[presets]`). The headers that a preset reads are delivered unchanged.
Facts about each: its own documents, named in docs/publish/coming-from/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from conf.errors import quoted
from conf.rejected import BadSchedule, Rejected
from conf.topic_tables import PRESETS
from sources.intake.preset_headers import Meaning, Origin, Preset, Repeat, ScheduleHeader
from sources.intake.schedule import parse_delay_level
from state.header_values import MAX_INSTANT_MS, MOST_TEXT_BYTES, header_text, parse_instant, whole_number
from state.repeats.rule import Rule, parse_rule
from state.repeats.schedule import Schedule

# Perhaps in quotes, as `header_text` allows. Blanks are matched in only one way, which takes linear time.
_NEGATIVE = re.compile(rb'\s*(?:"\s*)?-[0-9]+\s*(?:"\s*)?')
# The beginning of a step that leaves something out.
_STAR_OF_STEP = re.compile(r"\*(?=/(?!0*1(?:,|$)))")
# A day of the week from which a step counts.
_DAY_WITH_STEP = re.compile(r"(?<![^,])([0-9A-Z]+)/([0-9]+)", re.ASCII | re.IGNORECASE)
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _number(name: str, unit_ms: int = 1) -> Callable[[bytes | None], int]:
    def parse(value: bytes | None) -> int:
        try:
            return min(whole_number(header_text(value)) * unit_ms, MAX_INSTANT_MS)
        except ValueError as problem:
            raise BadSchedule(f"{name} is a whole number: {problem}") from None

    return parse


def _delay(name: str, unit_ms: int = 1, may_yield: bool = False) -> ScheduleHeader:
    """Return a header with a delay in units of `unit_ms`. A negative delay has passed, and counts as 0."""
    parse = _number(name, unit_ms)

    def parse_delay(value: bytes | None) -> int:
        is_negative = value is not None and len(value) <= MOST_TEXT_BYTES and _NEGATIVE.fullmatch(value)
        return 0 if is_negative else parse(value)

    return ScheduleHeader(name, Meaning.DELAY, parse_delay, may_yield=may_yield)


def _instant(name: str, may_yield: bool = False) -> ScheduleHeader:
    """Return a header with an instant in epoch ms."""

    def parse(value: bytes | None) -> int:
        try:
            return parse_instant(header_text(value))
        except ValueError as problem:
            raise BadSchedule(f"{name} is epoch ms: {problem}") from None

    return ScheduleHeader(name, Meaning.INSTANT, parse, may_yield=may_yield)


def _delay_level(value: bytes | None) -> int:
    try:
        return parse_delay_level(value)
    except Rejected as problem:
        raise BadSchedule(f"DELAY: {problem.args[0]}") from None


def _big_endian_ms(value: bytes | None) -> int:
    """Return the number of a Java `BigInteger.toByteArray()`: two's complement, as short as possible."""
    if not value or len(value) > 8 or value[0] >= 0x80:
        raise BadSchedule(
            f"retry_topic-backoff-timestamp is epoch ms as 1 to 8 bytes, the highest first: {quoted(value or b'')}"
        )
    return min(int.from_bytes(value), MAX_INSTANT_MS)


def _nats_schedule(value: bytes | None) -> int:
    try:
        text = header_text(value)
        kind, _, instant = text.partition(" ")
        if kind != "@at":
            raise ValueError(f"{quoted(text)} is not; repeating schedules need the policy repeats")
        if not _RFC_3339.fullmatch(instant.strip()):
            raise ValueError(f"{quoted(instant)} is not RFC 3339")
        return parse_instant(instant.strip())
    except ValueError as problem:
        raise BadSchedule(f"Nats-Schedule is '@at' and an instant: {problem}") from None


def _nats_repeat(values: Mapping[str, bytes | None]) -> Schedule | None:
    if "Nats-Schedule" not in values:
        return None
    text = header_text(values["Nats-Schedule"])
    if text.startswith("@at"):
        return None
    zone = header_text(values["Nats-Schedule-Time-Zone"]) if "Nats-Schedule-Time-Zone" in values else None
    return Schedule(parse_rule(_nats_cron(text), zone))


def _nats_cron(text: str) -> str:
    """Return a cron expression of NATS as others write it.

    In NATS `?` is `*`. The days of `1/2` end with Saturday. Elsewhere day 7 follows, which is Sunday. A step restricts
    a day field. Elsewhere `*/2` does not: then both day fields would have to match, not either of them.
    """
    fields = text.replace("?", "*").split()
    if len(fields) == 6:
        fields[5] = _DAY_WITH_STEP.sub(r"\1-6/\2", fields[5])
        if "*" not in (fields[3], fields[5]):
            fields[3], fields[5] = _STAR_OF_STEP.sub("1-31", fields[3]), _STAR_OF_STEP.sub("0-6", fields[5])
    return " ".join(fields)


def _activemq_repeat(values: Mapping[str, bytes | None]) -> Schedule | None:
    texts = {name: header_text(value) for name, value in values.items() if value not in (None, b"", b'""')}
    cron = texts.pop("AMQ_SCHEDULED_CRON", "0")
    asked = {name: text for name, text in texts.items() if text != "0"}
    if cron != "0":
        if asked:
            # There, each time of the expression would begin a series.
            raise ValueError(f"AMQ_SCHEDULED_CRON with {', '.join(sorted(asked))} is not followed")
        return Schedule(parse_rule(cron))
    if "AMQ_SCHEDULED_REPEAT" not in asked:
        return None
    period_ms = _number("AMQ_SCHEDULED_PERIOD")(asked.get("AMQ_SCHEDULED_PERIOD", "0").encode())
    if not period_ms:
        raise ValueError("AMQ_SCHEDULED_REPEAT needs AMQ_SCHEDULED_PERIOD")
    # So many times more, or without end.
    times = None if asked["AMQ_SCHEDULED_REPEAT"] == "-1" else 1 + whole_number(asked["AMQ_SCHEDULED_REPEAT"], 2**31)
    return Schedule(Rule(interval_ms=period_ms), count=times)


_BY_NAME = {
    preset.name: preset
    for preset in (
        Preset(
            "activemq",
            (
                # Artemis: of its own clients, and of STOMP.
                _instant("_AMQ_SCHED_DELIVERY", may_yield=True),
                _instant("AMQ_SCHEDULED_TIME", may_yield=True),
                _delay("AMQ_SCHEDULED_DELAY", may_yield=True),
                # The time between deliveries. Without a delay, the first one comes after this time.
                _delay("AMQ_SCHEDULED_PERIOD"),
            ),
            refused=("AMQ_SCHEDULED_CRON",),
            refused_with_schedule=("AMQ_SCHEDULED_REPEAT",),
            repeat=Repeat(
                ("AMQ_SCHEDULED_CRON", "AMQ_SCHEDULED_REPEAT", "AMQ_SCHEDULED_PERIOD", "AMQ_SCHEDULED_DELAY"),
                _activemq_repeat,
            ),
        ),
        Preset(
            "etf1",
            (ScheduleHeader("scheduler-epoch", Meaning.INSTANT, _number("scheduler-epoch", unit_ms=1_000)),),
            target="scheduler-target-topic",
            named=True,
            key="scheduler-target-key",
            origin=(
                ("scheduler-timestamp", Origin.SECONDS),
                ("scheduler-key", Origin.KEY),
                ("scheduler-topic", Origin.TOPIC),
            ),
            cancels_by_null_value=True,
        ),
        Preset(
            "karafka",
            (
                ScheduleHeader(
                    "schedule_target_epoch", Meaning.INSTANT, _number("schedule_target_epoch", unit_ms=1_000)
                ),
            ),
            target="schedule_target_topic",
            version=("schedule_schema_version", b"1."),
            named=True,
            key="schedule_target_key",
            partition="schedule_target_partition",
            partition_key="schedule_target_partition_key",
            origin=(
                ("schedule_source_topic", Origin.TOPIC),
                ("schedule_source_partition", Origin.PARTITION),
                ("schedule_source_offset", Origin.OFFSET),
                ("schedule_source_key", Origin.KEY),
            ),
            replaces_origin=True,
            cancel_header=("schedule_source_type", (b"cancel", b"tombstone")),
        ),
        Preset(
            "nats",
            (ScheduleHeader("Nats-Schedule", Meaning.INSTANT, _nats_schedule, may_repeat=True),),
            target="Nats-Schedule-Target",
            refused_with_schedule=("Nats-Schedule-Source",),
            repeat=Repeat(("Nats-Schedule", "Nats-Schedule-Time-Zone"), _nats_repeat),
        ),
        Preset(
            "rabbitmq",
            # The exchange negates the delay of what it has delivered.
            (_delay("x-delay"),),
        ),
        Preset(
            "rocketmq",
            (
                ScheduleHeader("DELAY", Meaning.LEVEL, _delay_level, may_yield=True),
                _delay("TIMER_DELAY_SEC", unit_ms=1_000),
                _delay("TIMER_DELAY_MS"),
                _instant("TIMER_DELIVER_MS"),
                _instant("__STARTDELIVERTIME"),
            ),
            target="REAL_TOPIC",
        ),
        Preset(
            "spring-retry",
            # Each retry of a record adds one, after the headers of earlier retries.
            (ScheduleHeader("retry_topic-backoff-timestamp", Meaning.INSTANT, _big_endian_ms, is_appended=True),),
        ),
    )
}


def presets_named(names: tuple[str, ...]) -> tuple[Preset, ...]:
    """Return the presets with these names, which are among `conf.settings.PRESETS`."""
    return tuple(_BY_NAME[name] for name in names)


def name_messages(names: tuple[str, ...]) -> bool:
    """Return whether one of the presets with these names gives messages names, by their keys."""
    return any(preset.named for preset in presets_named(names))


assert tuple(_BY_NAME) == PRESETS
