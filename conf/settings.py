"""One typed, validated, frozen value that says how a deployment runs.

Sources, each over the one before: a TOML file, the environment (`DELAYLINE_SECTION__KEY`), and
`--set section.key=value`. Built on pydantic-settings, which does the reading, merging and checking.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator
from pydantic import ValidationError as PydanticValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from conf.durations import FORMS, parse_duration_ms
from conf.errors import SettingError

DEFAULT_FILE = Path(__file__).with_name("delayline.toml")
_SECRET_KEY = re.compile(r"password|secret|jaas|token|passphrase|private|credential|access\.key", re.IGNORECASE)
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


def _duration(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"a duration is written as {FORMS}")
    return parse_duration_ms(str(value))


def _topic(name: str) -> str:
    if not _TOPIC_NAME.fullmatch(name) or name in {".", ".."}:
        raise ValueError("a topic name is 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'")
    return name


def _topic_pattern(name: str) -> str:
    if not re.fullmatch(r"[a-zA-Z0-9._\-*?\[\]!]{1,249}", name, re.ASCII):
        raise ValueError("an allowed output is a topic name or a shell pattern such as 'orders-*'")
    return name


DurationMs = Annotated[int, BeforeValidator(_duration)]
TopicName = Annotated[str, AfterValidator(_topic)]
TopicPattern = Annotated[str, AfterValidator(_topic_pattern)]
Positive = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Give `a.b = 1` written as a nested TOML table its dotted name back."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _option(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(value: str | SecretStr) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


class _OptionTable(_Section):
    """A section whose further keys are passed on as they are. Those that look secret are masked in print."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)
    __pydantic_extra__: dict[str, str | SecretStr] = Field(init=False)

    @model_validator(mode="before")
    @classmethod
    def _hide_secrets(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        return {
            key: value if key in cls.model_fields or isinstance(value, SecretStr)
            else SecretStr(_option(value)) if _SECRET_KEY.search(key) else _option(value)
            for key, value in _flatten(table).items()
        }

    @property
    def options(self) -> dict[str, str]:
        """The further keys with their values in clear, secrets included: never print or log this."""
        return {key: _plain(value) for key, value in (self.__pydantic_extra__ or {}).items()}


class KafkaSettings(_OptionTable):
    """How to reach the brokers. Further keys go to every Kafka client (`conf.kafka_options`)."""

    bootstrap_servers: str = Field("127.0.0.1:9092", min_length=1)


class SparkSettings(_OptionTable):
    """Spark options by their own names, over Delayline's defaults (`streaming.session`)."""


class TopicSettings(_Section):
    """Where messages come from and go to. `progress` is None for `<application_id>-progress`."""

    input: tuple[TopicName, ...] = Field(("delayline-in",), min_length=1)
    output: TopicName = "delayline-out"
    allowed_outputs: tuple[TopicPattern, ...] = ()
    dead_letter: TopicName = "delayline-dead-letter"
    progress: TopicName | None = None


class StorageSettings(_Section):
    """Where the checkpoint and the tables live: a local path or any Hadoop URI."""

    path: str = Field("./data", min_length=1)
    time_partition: DurationMs = Field(3_600_000, ge=60_000)


class LimitSettings(_Section):
    """What is accepted, and how much of it at a time."""

    max_delay: DurationMs = Field(366 * 86_400_000, ge=0)
    messages_per_trigger: Positive = 200_000


class ClockSettings(_Section):
    """How often a batch starts, and how far its cutoff may be ahead of the batch before."""

    trigger: DurationMs = Field(500, ge=0)
    lookahead: DurationMs = Field(1_400, ge=0, le=60_000)


class BucketSettings(_Section):
    """When the far part of a shard's mutable bucket is sealed. `shards` is fixed at a checkpoint's birth."""

    shards: int = Field(2, ge=1, le=1024)
    max_messages: Positive = 20_000
    max_bytes: int = Field(8 * 1024 * 1024, ge=1024)


class SegmentSettings(_Section):
    """How a sealed bucket is cut."""

    max_seconds: Positive = 300
    max_messages: Positive = 50_000


class WindowSettings(_Section):
    """How far ahead of the cutoff segments are loaded, in time and in messages."""

    ahead: DurationMs = Field(60_000, ge=1_000)
    max_messages: Positive = 500_000


class DeliverySettings(_Section):
    """How due messages are cut into Kafka transactions."""

    transaction_messages: Positive = 50_000
    slice: DurationMs = Field(100, ge=1)
    transaction_timeout: DurationMs = Field(60_000, ge=1_000, le=900_000)


class HeaderSettings(_Section):
    """The names of the headers that publishers set."""

    deliver_at: str = Field("deliver-at", min_length=1)
    deliver_after: str = Field("deliver-after", min_length=1)
    delay_level: str = Field("delay-level", min_length=1)
    deliver_to: str = Field("deliver-to", min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> HeaderSettings:
        names = [self.deliver_at, self.deliver_after, self.delay_level, self.deliver_to]
        if len(set(names)) != len(names):
            raise ValueError("the four header names must differ from each other")
        return self


class LevelSettings(_Section):
    """RocketMQ's `messageDelayLevel`: level n is the n-th delay."""

    delays: tuple[DurationMs, ...] = Field(
        tuple(parse_duration_ms(d) for d in "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h".split()),
        min_length=1,
    )


class Settings(BaseSettings):
    """The whole. Made by `load_settings`; durations are held in ms."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, env_prefix="DELAYLINE_", env_nested_delimiter="__"
    )

    application_id: str = Field("delayline", pattern=r"^[a-zA-Z0-9._-]{1,100}$")
    kafka: KafkaSettings = KafkaSettings()
    topics: TopicSettings = TopicSettings()
    storage: StorageSettings = StorageSettings()
    limits: LimitSettings = LimitSettings()
    clock: ClockSettings = ClockSettings()
    bucket: BucketSettings = BucketSettings()
    segment: SegmentSettings = SegmentSettings()
    window: WindowSettings = WindowSettings()
    delivery: DeliverySettings = DeliverySettings()
    headers: HeaderSettings = HeaderSettings()
    levels: LevelSettings = LevelSettings()
    spark: SparkSettings = SparkSettings()

    @property
    def progress_topic(self) -> str:
        """The compacted topic that holds, for each shard, how far its delivery is committed."""
        return self.topics.progress or f"{self.application_id}-progress"

    @model_validator(mode="after")
    def _no_loops(self) -> Settings:
        outputs = {self.topics.output, self.topics.dead_letter, self.progress_topic}
        if looped := outputs & set(self.topics.input):
            raise ValueError(f"topics.input: {sorted(looped)} is also an output, dead-letter or progress topic")
        if len(outputs) != 3:
            raise ValueError("topics: output, dead_letter and progress must be three different topics")
        return self
