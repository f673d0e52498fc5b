"""The sections of the settings that have tables for single topics: policies, presets and rates."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ValidationError, model_validator

from conf.setting_types import (
    DAY,
    LONGEST,
    MOST,
    SECOND,
    Bounded,
    Count,
    HeaderName,
    OptionTable,
    Section,
    allowed_by,
    duration,
    one_of,
    read_list,
)

# The policies that can be left unset.
_NO_POLICY = ("fixed_delay", "max_waiting", "expire_after", "expiry_header")


class Policy(Section):
    """The policy of an input topic, which applies in addition to the headers. Durations in ms; None: not set."""

    default_delay: Annotated[int, duration(0, LONGEST)] = 0
    fixed_delay: Annotated[int, duration(0, LONGEST)] | None = None
    max_delay: Annotated[int, duration(0, LONGEST)] = 366 * DAY
    over_max_delay: Annotated[str, one_of("reject", "clamp")] = "reject"
    max_waiting: Count | None = None
    expire_after: Annotated[int, duration(SECOND, LONGEST)] | None = None
    expiry_header: HeaderName | None = None
    names: Annotated[str, one_of("off", "header", "key")] = "off"
    name_mode: Annotated[str, one_of("replace", "keep", "keep-time")] = "replace"
    repeats: bool = False
    repeat_interval: Annotated[int, duration(SECOND, LONGEST)] = 10 * SECOND

    @model_validator(mode="before")
    @classmethod
    def _none(cls, table: Any) -> Any:
        # TOML has no null: the file writes "".
        if not isinstance(table, dict):
            return table
        return {key: None if value == "" and key in _NO_POLICY else value for key, value in table.items()}


class PolicySettings(OptionTable, Policy):
    """Policies for delays, besides headers: for all input topics, and for single ones in their place."""

    model_config = OptionTable.model_config

    @model_validator(mode="after")
    def _topics(self) -> PolicySettings:
        _ = self.by_topic
        return self

    @property
    def of_all(self) -> Policy:
        """The policy of input topics that have no table of their own."""
        return Policy(**{name: getattr(self, name) for name in Policy.model_fields})

    @property
    def by_topic(self) -> dict[str, Policy]:
        """The policies of each input topic that has any of its own. Raises ValueError if one is wrong."""
        own: dict[str, dict[str, str]] = {}
        for key, value in self.options.items():
            topic, _, name = key.rpartition(".")
            own.setdefault(topic, {})[name] = value
        policies = {}
        for topic, table in own.items():
            unknown = sorted(set(table) - set(Policy.model_fields))
            if unknown or not topic:
                names = ", ".join(Policy.model_fields)
                raise ValueError(f"{names}, or a table of these for a topic, not {topic!r} {unknown}")
            try:
                policies[topic] = Policy(**(self.of_all.model_dump() | table))
            except ValidationError as problem:
                first = problem.errors()[0]
                raise ValueError(f"for {topic}.{first['loc'][0]} {allowed_by(first)}") from None
        return policies


# The schedulers with headers that Delayline understands (`sources.intake.presets`).
PRESETS = ("activemq", "etf1", "karafka", "nats", "rabbitmq", "rocketmq", "spring-retry")


class PresetSettings(OptionTable):
    """For input topics: the schedulers whose publishers' headers are understood there, besides Delayline's own."""

    @model_validator(mode="after")
    def _known(self) -> PresetSettings:
        for topic, names in self.by_topic.items():
            if not names or any(name not in PRESETS or names.count(name) > 1 for name in names):
                raise ValueError(f"one or more of {', '.join(PRESETS)}, separated by commas, for {topic!r}")
        return self

    @property
    def by_topic(self) -> dict[str, tuple[str, ...]]:
        """The names of the presets of each input topic that has any."""
        return {topic: tuple(read_list(names)) for topic, names in self.options.items()}


class RateSettings(OptionTable):
    """For output topics: how many messages a second are released to them, at the most."""

    @model_validator(mode="after")
    def _numbers(self) -> RateSettings:
        _ = self.by_topic
        return self

    @property
    def by_topic(self) -> dict[str, int]:
        """The rate of each output topic that has a limit. Raises ValueError if one is wrong."""
        rates = {}
        for topic, rate in self.options.items():
            try:
                rates[topic] = _RATE.check(rate)
            except ValueError as problem:
                raise ValueError(f"{problem} for {topic!r}") from None
        return rates


_RATE = Bounded(1, MOST)
