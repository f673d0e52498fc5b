"""One typed, validated, frozen value that says how a deployment runs.

This file says what there is to set and what is allowed; `conf.load` fills it from the file, the environment
and the command line. Each check's ValueError says only what is allowed: it never repeats the value, which may
be a secret, and `conf.load` adds key, value and origin.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SecretStr,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from conf.durations import FORMS, parse_duration_ms

_SECRET_KEY = re.compile(
    r"passw|passphrase|secret|jaas|token|private|credential|signature|oauthbearer\.config|keystore\.key$|key\.pem"
    r"|(?:access|account|encryption|shared|api|sas)[._-]?key",
    re.IGNORECASE,
)
# Secrets inside other values: user:password@host in a URI, -Djavax.net.ssl.keyStorePassword=..., a PEM key.
_SECRET_VALUE = re.compile(
    r"(?:^|//|,)[^/@,\s]*:[^/@,\s]+@|(?:passw|secret|token|credential)[\w.-]*\s*[=:]|PRIVATE KEY",
    re.IGNORECASE,
)
SECRET_PATTERN = f"(?i){_SECRET_KEY.pattern}|{_SECRET_VALUE.pattern}"
"""What `is_secret` searches for in keys and values, as Java reads it too."""
_SERVER = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[^\s,:/@\[\]]+):(\d{1,5})")

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
# Far above any use, far below where a sum of an instant and a duration leaves 64 bits.
_LONGEST = 36_525 * _DAY
_MOST = 2_147_483_647


def is_secret(key: str, value: object = "") -> bool:
    """Say whether the option `key`, or what stands in its value, must not be printed."""
    return (
        isinstance(value, SecretStr)
        or bool(_SECRET_KEY.search(key))
        or (isinstance(value, str) and bool(_SECRET_VALUE.search(value)))
    )


def without_secrets(text: str, options: Mapping[str, object]) -> str:
    """Return `text`, which a client of `options` has written, with `******` for each value that `is_secret`."""
    for name, value in options.items():
        if value and is_secret(name, value):
            text = text.replace(str(value), "******")
    return text


@dataclass(frozen=True)
class _Between:
    """A pydantic annotation: a whole number, or a duration in ms, within bounds. A failure is a sentence."""

    low: int
    high: int
    is_duration: bool = False

    def check(self, value: Any) -> int:
        parse: Callable[[str], int] = parse_duration_ms if self.is_duration else int
        try:
            # True is an int to Python and never meant as one here; and 2.0 is no count.
            if isinstance(value, int | str) and not isinstance(value, bool):
                number = parse(str(value))
                if self.low <= number <= self.high:
                    return number
        except ValueError:
            pass  # The sentence below says more than the parser's.
        raise ValueError(self.allowed())

    def allowed(self) -> str:
        if not self.is_duration:
            return f"a whole number from {self.low} to {self.high}"
        return f"a duration from {_exactly(self.low)} to {_exactly(self.high)}, written as {FORMS}"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)


def _duration(low_ms: int, high_ms: int) -> _Between:
    return _Between(low_ms, high_ms, is_duration=True)


def _exactly(ms: int) -> str:
    units = (("d", _DAY), ("h", _HOUR), ("m", _MINUTE), ("s", _SECOND))
    return next((f"{ms // size}{unit}" for unit, size in units if ms and ms % size == 0), f"{ms}ms")


def _matching(pattern: str, allowed: str) -> AfterValidator:
    """Check that a text matches `pattern` as a whole; `allowed` says the same in words."""
    compiled = re.compile(pattern, re.ASCII)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(allowed)
        return text

    return AfterValidator(check)


def _servers(text: str) -> str:
    servers = [server.strip() for server in text.split(",")]
    ports = [match and int(match[1]) for match in map(_SERVER.fullmatch, servers)]
    if not all(port and port <= 65_535 for port in ports):
        raise ValueError("host:port, or several separated by commas")
    return ",".join(servers)


def _list(value: Any) -> Any:
    """Read a list out of one text, as the environment and `--set` give it: `["a", "b"]` or `a,b`."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        return [item.strip() for item in value.split(",")] if value.strip() else []
    try:
        return tomllib.loads(f"list = {value.strip()}")["list"]
    except tomllib.TOMLDecodeError:
        raise ValueError('a list, written as ["a", "b"] or a,b') from None


Count = Annotated[int, _Between(1, _MOST)]
ApplicationId = Annotated[str, _matching(r"[a-zA-Z0-9._-]{1,100}", "1 to 100 of a-z, A-Z, 0-9, '.', '_', '-'")]
TopicName = Annotated[
    str,
    _matching(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}", "a topic name: 1 to 249 of a-z, A-Z, 0-9, '.', '_', '-'"),
]
TopicPattern = Annotated[
    str, _matching(r"[a-zA-Z0-9._\-*?\[\]!]{1,249}", "a topic name, or a shell pattern such as 'orders-*'")
]
HeaderName = Annotated[str, _matching(r"(?s)(?!delayline-).+", "1 character or more, not beginning with 'delayline-'")]
# Credentials in a URI would be printed with it.
StoragePath = Annotated[
    str,
    _matching(
        r"(?!.*://[^/@]*:[^/@]*@).*\S.*",
        "a local path, or a Hadoop URI without credentials (write those in [spark], as spark.hadoop.…)",
    ),
]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _option(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float | SecretStr):
        raise ValueError("text, a number, true or false")
    return value if isinstance(value, SecretStr) else str(value)


class OptionTable(_Section):
    """A section whose further keys are passed on as they are. Those that look secret are masked in print."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)
    __pydantic_extra__: dict[str, Annotated[str | SecretStr, BeforeValidator(_option)]] = Field(init=False)

    @model_validator(mode="before")
    @classmethod
    def _hide_secrets(cls, table: Any) -> Any:
        return cls.hide_secrets(table) if isinstance(table, dict) else table

    @classmethod
    def hide_secrets(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Return `table` with the values of secret-looking further keys as SecretStr."""
        return {
            key: SecretStr(str(value))
            if key not in cls.model_fields and isinstance(value, str | int | float) and is_secret(key, value)
            else value
            for key, value in table.items()
        }

    @property
    def options(self) -> dict[str, str]:
        """The further keys with their values in clear, secrets included: never print or log this."""
        return {
            key: value.get_secret_value() if isinstance(value, SecretStr) else value
            for key, value in (self.__pydantic_extra__ or {}).items()
        }


class KafkaSettings(OptionTable):
    """How to reach the brokers. Further keys go to every Kafka client (`conf.kafka.options`)."""

    bootstrap_servers: Annotated[str, AfterValidator(_servers)] = "127.0.0.1:9092"
    outage_limit: Annotated[int, _duration(_SECOND, _DAY)] = 5 * _MINUTE


class SparkSettings(OptionTable):
    """Spark options by their own names, over Delayline's defaults (`streaming.spark.session`)."""

    @model_validator(mode="before")
    @classmethod
    def _default_master(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        if wrong := [key for key in table if not key.startswith("spark.")]:
            raise ValueError(f"keys that begin with 'spark.', not {wrong}")
        # Two cores, and a failed task is tried up to four times, as on a cluster: plain local[2] tries once.
        return {"spark.master": "local[2,4]"} | table


class TopicSettings(_Section):
    """Where messages come from and go to, and the topics of the service's own."""

    input: Annotated[tuple[TopicName, ...], BeforeValidator(_list), Field(min_length=1)] = ("delayline-in",)
    output: TopicName = "delayline-out"
    allowed_outputs: Annotated[tuple[TopicPattern, ...], BeforeValidator(_list)] = ()
    dead_letter: TopicName = "delayline-dead-letter"
    skip_expired: bool = False
    # TOML has no null: the file writes "".
    progress: Annotated[TopicName | None, BeforeValidator(lambda name: name or None)] = None
    lease: Annotated[TopicName | None, BeforeValidator(lambda name: name or None)] = None


class StorageSettings(_Section):
    """Where the checkpoint and the tables live: a local path or any Hadoop URI."""

    path: StoragePath = "./data"
    time_partition: Annotated[int, _duration(_MINUTE, _LONGEST)] = _HOUR


class LimitSettings(_Section):
    """What is accepted, and how much of it at a time."""

    max_delay: Annotated[int, _duration(0, _LONGEST)] = 366 * _DAY
    # Kafka's own default for a topic's max.message.bytes.
    max_message_bytes: Count = 1_048_588
    messages_per_trigger: Count = 200_000


class ClockSettings(_Section):
    """How often a batch starts, and how far its cutoff is ahead of the clock."""

    trigger: Annotated[int, _duration(0, _DAY)] = 500
    lookahead: Annotated[int, _duration(0, _MINUTE)] = 2_000


class BucketSettings(_Section):
    """When the far part of a shard's mutable bucket is sealed, and how many sealed buckets may wait unmerged.

    `shards` is fixed for the life of a checkpoint; `delayline rescale` makes a new one.
    """

    shards: Annotated[int, _Between(1, 1024)] = 2
    limit: Annotated[int, _Between(1, _MOST)] = 500
    max_messages: Count = 20_000
    max_bytes: Annotated[int, _Between(1024, _MOST)] = 8 * 1024 * 1024


class SegmentSettings(_Section):
    """How a sealed bucket is cut."""

    max_seconds: Count = 300
    max_messages: Count = 50_000


class IndexSettings(_Section):
    """How exactly the message-id index, in a segment's metadata, records when each message is due."""

    precision_bits: Annotated[int, _Between(0, 31)] = 15


class WindowSettings(_Section):
    """How far ahead of the cutoff segments are loaded, in time and in messages."""

    ahead: Annotated[int, _duration(_SECOND, _DAY)] = _MINUTE
    max_messages: Count = 500_000


class DeliverySettings(_Section):
    """How due messages are cut into Kafka transactions."""

    transaction_messages: Count = 50_000
    slice: Annotated[int, _duration(1, _MINUTE)] = 100
    # 0 is no limit.
    messages_per_second: Annotated[int, _Between(0, _MOST)] = 0
    # A broker refuses more than its transaction.max.timeout.ms, 15 minutes by default.
    transaction_timeout: Annotated[int, _duration(_SECOND, 15 * _MINUTE)] = _MINUTE


class LeaseSettings(_Section):
    """How long the holder of the application id may give no heartbeat before another process takes over."""

    period: Annotated[int, _duration(2 * _SECOND, 10 * _MINUTE)] = 10 * _SECOND


class HeaderSettings(_Section):
    """The names of the headers that publishers set."""

    deliver_at: HeaderName = "deliver-at"
    deliver_after: HeaderName = "deliver-after"
    delay_level: HeaderName = "delay-level"
    deliver_to: HeaderName = "deliver-to"

    @model_validator(mode="after")
    def _distinct(self) -> HeaderSettings:
        names = [self.deliver_at, self.deliver_after, self.delay_level, self.deliver_to]
        if len(set(names)) != len(names):
            raise ValueError(f"four names that differ from each other, not {names}")
        return self


class LevelSettings(_Section):
    """RocketMQ's `messageDelayLevel`: level n is the n-th delay."""

    delays: Annotated[
        tuple[Annotated[int, _duration(0, _LONGEST)], ...],
        BeforeValidator(_list),
        Field(min_length=1),
    ] = (
        *(seconds * _SECOND for seconds in (1, 5, 10, 30)),
        *(minutes * _MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
        *(hours * _HOUR for hours in (1, 2)),
    )


class Settings(BaseSettings):
    """The whole; durations are held in ms. `conf.load.load_settings` makes one for a deployment."""

    # Decoding is left to `_list`, which reads a list the same way wherever it comes from.
    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        case_sensitive=True,
        enable_decoding=False,
        env_prefix="DELAYLINE_",
        env_nested_delimiter="__",
        env_nested_max_split=1,
    )

    application_id: ApplicationId = "delayline"
    kafka: KafkaSettings = KafkaSettings()
    topics: TopicSettings = TopicSettings()
    storage: StorageSettings = StorageSettings()
    limits: LimitSettings = LimitSettings()
    clock: ClockSettings = ClockSettings()
    bucket: BucketSettings = BucketSettings()
    segment: SegmentSettings = SegmentSettings()
    index: IndexSettings = IndexSettings()
    window: WindowSettings = WindowSettings()
    delivery: DeliverySettings = DeliverySettings()
    lease: LeaseSettings = LeaseSettings()
    headers: HeaderSettings = HeaderSettings()
    levels: LevelSettings = LevelSettings()
    spark: SparkSettings = SparkSettings()

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let `Settings(...)` read nothing but its arguments; the environment is `load_settings`' part."""
        return (init_settings,)

    @property
    def progress_topic(self) -> str:
        """The compacted topic that holds, for each shard, how far its delivery is committed."""
        return self.topics.progress or f"{self.application_id}-progress"

    @property
    def lease_topic(self) -> str:
        """The compacted topic whose newest record says which process may deliver and seal."""
        return self.topics.lease or f"{self.application_id}-lease"

    @property
    def own_topics(self) -> tuple[str, str]:
        """The topics that nobody but the service may write to."""
        return self.progress_topic, self.lease_topic

    @model_validator(mode="after")
    def _no_loops(self) -> Settings:
        topics, own = self.topics, dict(zip(("progress", "lease"), self.own_topics, strict=True))
        outputs = {"output": topics.output, "dead_letter": topics.dead_letter, **own}
        wrong = [
            f"topics.{key} = {topic!r}: allowed is a topic that is not in topics.input"
            for key, topic in outputs.items()
            if topic in topics.input
        ]
        # A pattern may match one of these by accident and the job has to mind it; a name was meant.
        wrong += [
            f"topics.allowed_outputs = {topic!r}: allowed is no input, dead-letter, progress or lease topic"
            for topic in topics.allowed_outputs
            if topic in {*topics.input, topics.dead_letter, *own.values()}
        ]
        if len(set(outputs.values())) != len(outputs):
            wrong.append(f"topics: output, dead_letter, progress and lease must be different topics, not {outputs}")
        if wrong:
            raise ValueError("\n".join(wrong))
        return self
