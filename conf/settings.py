"""One typed, validated, frozen value that says how a deployment runs.

This file holds each setting with its bounds and default; `conf.setting_types` checks single values; `conf.load`
reads them from the file, the environment and the command line, and adds key, value and origin to an error.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from conf.setting_types import (
    DAY,
    HOUR,
    LONGEST,
    MINUTE,
    MOST,
    SECOND,
    ApplicationId,
    Bounded,
    Count,
    FilePath,
    FolderPath,
    HeaderName,
    ListenAddress,
    OptionTable,
    Section,
    ServerAddress,
    ServerList,
    StoragePath,
    TopicName,
    TopicPattern,
    WebAddress,
    WebToken,
    duration,
    one_of,
    read_list,
)
from conf.spark_options import CHECKPOINT_FILE_MANAGER, FIXED_OPTIONS, TABLE_DEFAULTS

# The largest message that can be carried: the ready log's record of it is smaller than the largest request of a broker.
MOST_MESSAGE_BYTES = 64 * 1024 * 1024


class KafkaSettings(OptionTable):
    """How to reach the brokers. Other keys are passed to every Kafka client (`conf.kafka.options`)."""

    bootstrap_servers: ServerList = "127.0.0.1:9092"
    # `conf.load` adds the file's properties to the passed-on keys.
    client_properties: FilePath = ""
    outage_limit: Annotated[int, duration(SECOND, DAY)] = 5 * MINUTE


class SparkSettings(OptionTable):
    """Spark options by their own names, over Delayline's defaults (`streaming.spark.session`)."""

    @model_validator(mode="before")
    @classmethod
    def _default_master(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        if wrong := [key for key in table if not key.startswith("spark.")]:
            raise ValueError(f"keys that begin with 'spark.', not {wrong}")
        if fixed := [f"no {key}, {FIXED_OPTIONS[key]}" for key in table if key in FIXED_OPTIONS]:
            raise ValueError("; ".join(fixed))
        if defaults := [key for key in table if key.startswith(TABLE_DEFAULTS)]:
            raise ValueError(f"no {', '.join(defaults)}: the table of sealed messages sets its own properties")
        # Two cores, and up to four tries of a task, as on a cluster: plain local[2] tries once.
        return {"spark.master": "local[2,4]"} | table


class TopicSettings(Section):
    """The topics that messages come from and go to. The names of internal topics follow from `application_id`."""

    input: Annotated[tuple[TopicName, ...], BeforeValidator(read_list), Field(min_length=1)] = ("delayline-in",)
    output: TopicName = "delayline-out"
    allowed_outputs: Annotated[tuple[TopicPattern, ...], BeforeValidator(read_list)] = ()
    dead_letter: TopicName = "delayline-dead-letter"
    skip_expired: bool = False
    # TOML has no null: the file writes "".
    results: Annotated[TopicName | None, BeforeValidator(lambda name: name or None)] = None


class StorageSettings(Section):
    """Where the checkpoint and the tables live: a local path or any Hadoop URI."""

    path: StoragePath = "./data"


class LimitSettings(Section):
    """Which messages are accepted, and how many a batch takes."""

    max_delay: Annotated[int, duration(0, LONGEST)] = 366 * DAY
    # Kafka's own default for a topic's max.message.bytes.
    max_message_bytes: Annotated[int, Bounded(1, MOST_MESSAGE_BYTES)] = 1_048_588
    messages_per_trigger: Count = 500_000


class ClockSettings(Section):
    """How often a batch starts, how far ahead of the clock it hands over, and how far that may be off."""

    trigger: Annotated[int, duration(0, DAY)] = 500
    horizon: Annotated[int, duration(SECOND, HOUR)] = MINUTE
    skew_limit: Annotated[int, duration(10 * SECOND, LONGEST)] = 2 * MINUTE


class CancelSettings(Section):
    """How long a cancelled message is known by its id, beyond what it is needed for itself."""

    known_for: Annotated[int, duration(DAY, LONGEST)] = 30 * DAY


class BucketSettings(Section):
    """When the far part of a shard's mutable bucket is sealed, and how many sealed buckets may wait unmerged.

    `shards` is fixed for the life of a checkpoint; `delayline rescale` makes a new one.
    """

    shards: Annotated[int, Bounded(1, 1024)] = 2
    max_messages: Count = 20_000
    fan_in: Annotated[int, Bounded(2, 100)] = 16
    max_bytes: Annotated[int, Bounded(1024, MOST)] = 8 * 1024 * 1024


class WindowSettings(Section):
    """How many bytes of sealed messages are loaded ahead of the cutoff."""

    max_bytes: Annotated[int, Bounded(1024, MOST)] = 256 * 1024 * 1024


class ReleaseSettings(Section):
    """How messages that are handed over are released: in how many processes, and in which Kafka transactions."""

    processes: Annotated[int, Bounded(0, 64)] = 1
    lead: Annotated[int, duration(1, 10 * SECOND)] = 100
    slice: Annotated[int, duration(1, MINUTE)] = 20
    transaction_messages: Count = 3_000
    # 0 is no limit.
    messages_per_second: Annotated[int, Bounded(0, MOST)] = 0
    max_bytes: Annotated[int, Bounded(16 * 1024 * 1024, MOST)] = 256 * 1024 * 1024
    # A broker refuses more than its transaction.max.timeout.ms, 15 minutes by default.
    transaction_timeout: Annotated[int, duration(SECOND, 15 * MINUTE)] = MINUTE


class ForwardSettings(Section):
    """In how many processes forwarders take what is due soon, past the batches, and how often batches begin then."""

    processes: Annotated[int, Bounded(0, 64)] = 1
    elsewhere: bool = False
    trigger: Annotated[int, duration(0, DAY)] = 5 * SECOND

    @property
    def is_on(self) -> bool:
        """Whether there may be forwarders. If not, batches do all of their work, and wait for no claims."""
        return self.processes > 0 or self.elsewhere

    def lanes(self, shards: int) -> int:
        """Return among how many lanes the input partitions are divided: 0 without forwarders, else `shards` at most.

        Two lanes in one process share its interpreter lock, and write twice as many transactions.
        """
        if self.processes > 1 or self.elsewhere:
            return shards
        return self.processes


class MonitorSettings(Section):
    """Where the job, release processes and forwarders answer `/metrics`, `/healthz` and `/readyz`, and how they log."""

    job: ListenAddress = "127.0.0.1:9464"
    release: ListenAddress = ""
    forward: ListenAddress = ""
    process_addresses: Annotated[tuple[ServerAddress, ...], BeforeValidator(read_list)] = ()
    otlp: WebAddress = ""
    log_format: Annotated[str, one_of("text", "json")] = "text"

    @property
    def tells_of_job(self) -> bool:
        """Whether anybody can learn what the job is doing: it answers, or sends its metrics."""
        return bool(self.job or self.otlp)


class WebSettings(Section):
    """Where the page of `delayline web` is, and what it asks for before it shows messages or acts."""

    address: ListenAddress = "127.0.0.1:9466"
    token: WebToken = ""


class JarSettings(Section):
    """Where `delayline jars` fetches Java's libraries from."""

    mirror: WebAddress = ""
    folder: FolderPath = ""


class LeaseSettings(Section):
    """How long the job that holds the lease may send no heartbeat before another process takes over."""

    period: Annotated[int, duration(2 * SECOND, 10 * MINUTE)] = 10 * SECOND


class HeaderSettings(Section):
    """The names of the headers that publishers set."""

    deliver_at: HeaderName = "deliver-at"
    deliver_after: HeaderName = "deliver-after"
    delay_level: HeaderName = "delay-level"
    deliver_to: HeaderName = "deliver-to"

    @property
    def delays(self) -> tuple[str, str, str]:
        """The names of the headers that say when."""
        return self.deliver_at, self.deliver_after, self.delay_level

    @model_validator(mode="after")
    def _distinct(self) -> HeaderSettings:
        names = [*self.delays, self.deliver_to]
        if len(set(names)) != len(names):
            raise ValueError(f"four different names, not {names}")
        return self


# The policies that can be none.
_NO_POLICY = ("fixed_delay", "max_delay", "max_waiting", "expire_after", "expiry_header")


class Policy(Section):
    """What holds for the messages of an input topic, besides what headers ask for. Durations in ms; None is none."""

    default_delay: Annotated[int, duration(0, LONGEST)] = 0
    fixed_delay: Annotated[int, duration(0, LONGEST)] | None = None
    max_delay: Annotated[int, duration(0, LONGEST)] | None = None
    over_max_delay: Annotated[str, one_of("reject", "clamp")] = "reject"
    max_waiting: Count | None = None
    expire_after: Annotated[int, duration(SECOND, LONGEST)] | None = None
    expiry_header: HeaderName | None = None
    names: Annotated[str, one_of("off", "header", "key")] = "off"
    name_mode: Annotated[str, one_of("replace", "keep")] = "replace"

    @model_validator(mode="before")
    @classmethod
    def _none(cls, table: Any) -> Any:
        # TOML has no null: the file writes "".
        if not isinstance(table, dict):
            return table
        return {key: None if value == "" and key in _NO_POLICY else value for key, value in table.items()}


class PolicySettings(OptionTable, Policy):
    """What holds for delays besides what headers ask for: for all input topics, and over that for single ones."""

    model_config = OptionTable.model_config

    @model_validator(mode="after")
    def _topics(self) -> PolicySettings:
        _ = self.by_topic
        return self

    @property
    def of_all(self) -> Policy:
        """What holds for an input topic without policies of its own."""
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
                raise ValueError(f"for {topic}.{first['loc'][0]} {first['ctx']['error']}") from None
        return policies


# The schedulers whose publishers' headers are understood (`sources.intake.presets`).
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


class LevelSettings(Section):
    """RocketMQ's `messageDelayLevel`: level n is the n-th delay."""

    delays: Annotated[
        tuple[Annotated[int, duration(0, LONGEST)], ...],
        BeforeValidator(read_list),
        Field(min_length=1),
    ] = (
        *(seconds * SECOND for seconds in (1, 5, 10, 30)),
        *(minutes * MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
        *(hours * HOUR for hours in (1, 2)),
    )


# Hosts of addresses of which two cannot have the same port, besides equal ones.
_THIS_HOST = frozenset({"0.0.0.0", "127.0.0.1", "localhost", "[::]", "[::1]"})  # noqa: S104, nothing listens here
_MOST_PORT = 65_535


def _wrong_ports(monitor: MonitorSettings, web: WebSettings, releases: int, forwarders: int) -> list[str]:
    """Return what is wrong with the ports of a host that runs the job, its processes and the page."""
    listeners = [("monitor.job", monitor.job, "monitor.job", 0), ("web.address", web.address, "web.address", 0)]
    # With none, a process of a command of its own has the address, and may be on another host.
    for key, address, user, processes in (
        ("monitor.release", monitor.release, "release process {} of release.processes", releases),
        ("monitor.forward", monitor.forward, "forwarder {} of forward.processes", forwarders),
    ):
        listeners += [(key, address, user.format(number + 1), number) for number in range(processes)]
    wrong: list[str] = []
    taken: list[tuple[str, int, str]] = []
    for key, address, user, number in listeners:
        host, _, first = address.rpartition(":")
        # "" is nowhere, and port 0 any free one.
        if not address or not int(first):
            continue
        port = int(first) + number
        if port > _MOST_PORT:
            wrong.append(f"{key} = {address!r}: allowed are ports up to {_MOST_PORT}, and {user} would take {port}")
            break
        for other_host, other_port, other in taken:
            if port == other_port and (host == other_host or {host, other_host} <= _THIS_HOST):
                wrong.append(f"{key} = {address!r}: {user} would take port {port}, which {other} uses")
        taken.append((host, port, user))
    return wrong


# The internal topics, in the order of `Settings.own_topics`.
_OWN_TOPICS = ("progress", "lease", "ready", "position", "near", "claims", "recalled")
# How the internal topics of any application end by default.
INTERNAL_SUFFIXES = tuple(f"-{key}" for key in _OWN_TOPICS)


class Settings(BaseSettings):
    """All settings of a deployment, made by `conf.load.load_settings`. Durations are in ms."""

    # `read_list` decodes lists, the same way for every source; pydantic-settings would read JSON only.
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
    cancels: CancelSettings = CancelSettings()
    bucket: BucketSettings = BucketSettings()
    window: WindowSettings = WindowSettings()
    release: ReleaseSettings = ReleaseSettings()
    forward: ForwardSettings = ForwardSettings()
    lease: LeaseSettings = LeaseSettings()
    monitor: MonitorSettings = MonitorSettings()
    web: WebSettings = WebSettings()
    headers: HeaderSettings = HeaderSettings()
    levels: LevelSettings = LevelSettings()
    policies: PolicySettings = PolicySettings()
    presets: PresetSettings = PresetSettings()
    rates: RateSettings = RateSettings()
    jars: JarSettings = JarSettings()
    spark: SparkSettings = SparkSettings()

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let `Settings(...)` read only its arguments; `load_settings` reads the environment."""
        return (init_settings,)

    @property
    def results_topic(self) -> str:
        """The topic of the answers to cancels."""
        return self.topics.results or f"{self.application_id}-results"

    @property
    def progress_topic(self) -> str:
        """The compacted topic that holds, for each shard, how far its delivery is committed."""
        return f"{self.application_id}-progress"

    @property
    def lease_topic(self) -> str:
        """The compacted topic whose newest record names the process that may deliver and seal."""
        return f"{self.application_id}-lease"

    @property
    def ready_topic(self) -> str:
        """The topic to which batches hand over messages, in a partition for each shard."""
        return f"{self.application_id}-ready"

    @property
    def position_topic(self) -> str:
        """The compacted topic that holds, for each shard, how far it is released."""
        return f"{self.application_id}-position"

    @property
    def near_topic(self) -> str:
        """The topic to which forwarders hand over messages that are due soon, in a partition for each shard."""
        return f"{self.application_id}-near"

    @property
    def claims_topic(self) -> str:
        """The topic in which forwarders claim what they take: the first partition has the terms, the others a lane."""
        return f"{self.application_id}-claims"

    @property
    def recalled_topic(self) -> str:
        """The compacted topic of the messages that release processes have recalled.

        Partition 0 says from where on it knows them. Each shard has one of the other partitions.
        """
        return f"{self.application_id}-recalled"

    @property
    def own_topics(self) -> tuple[str, ...]:
        """The internal topics, which only the service may write to."""
        return (
            self.progress_topic,
            self.lease_topic,
            self.ready_topic,
            self.position_topic,
            self.near_topic,
            self.claims_topic,
            self.recalled_topic,
        )

    @model_validator(mode="after")
    def _fitting(self) -> Settings:
        topics, own = self.topics, dict(zip(_OWN_TOPICS, self.own_topics, strict=True))
        outputs = {"output": topics.output, "dead_letter": topics.dead_letter, "results": self.results_topic, **own}
        wrong = [
            f"topics.{key} = {topic!r}: allowed is a topic that is not in topics.input"
            if key not in own
            else f"topics.input = {topic!r}: allowed is a topic that is not internal to this application_id"
            for key, topic in outputs.items()
            if topic in topics.input
        ]
        # Names only: the job leaves out what a pattern matches by accident.
        wrong += [
            f"topics.allowed_outputs = {topic!r}: input, dead-letter, results and internal topics are not allowed"
            for topic in topics.allowed_outputs
            if topic in {*topics.input, topics.dead_letter, self.results_topic, *own.values()}
        ]
        own_policies = {f"policies.{topic}": policy for topic, policy in self.policies.by_topic.items()}
        by_topic = {f"presets.{topic}" for topic in self.presets.by_topic} | own_policies.keys()
        wrong += [
            f"{key}: allowed are topics in topics.input"
            for key in sorted(by_topic)
            if key.partition(".")[2] not in topics.input
        ]
        wrong += [
            f"rates.{topic}: allowed are topics.output, topics.allowed_outputs, the dead-letter and the results topic"
            for topic in self.rates.by_topic
            if topic not in {topics.output, topics.dead_letter, self.results_topic}
            and not any(fnmatchcase(topic, pattern) for pattern in topics.allowed_outputs)
        ]
        for key, policy in {"policies": self.policies.of_all, **own_policies}.items():
            longest = self.limits.max_delay if policy.max_delay is None else policy.max_delay
            if policy.over_max_delay == "reject" and max(policy.default_delay, policy.fixed_delay or 0) > longest:
                wrong.append(f"{key}: default_delay and fixed_delay must not exceed the longest delay")
        if self.clock.trigger > self.clock.horizon:
            wrong.append(
                "clock.trigger: allowed is a duration up to clock.horizon. With a longer one, messages would be late"
            )
        release = self.release
        if 4 * release.slice > release.transaction_timeout:
            wrong.append(
                "release.slice: allowed is a duration up to a quarter of release.transaction_timeout. The "
                "rest of it is left for the work on a transaction"
            )
        # A transaction's last message is due a slice after its first, which is due a lead after it is written. If it is
        # due later than in half of the timeout, the clock counts as set back (`sinks.release.ring`).
        if 2 * (release.lead + release.slice) > release.transaction_timeout:
            wrong.append(
                "release.lead: release.lead and release.slice together must not exceed half of "
                "release.transaction_timeout. A transaction is open for that long before its messages are due"
            )
        wrong += _wrong_ports(self.monitor, self.web, release.processes, self.forward.processes)
        # On S3 alone: for a file system that Delayline does not know, a deployment may have a better one than Spark's.
        if self.storage.path.startswith("s3a:") and CHECKPOINT_FILE_MANAGER in self.spark.options:
            wrong.append(
                f"[spark]: {CHECKPOINT_FILE_MANAGER} is not allowed if storage.path is on S3. Other classes "
                "than Delayline's may leave a checkpoint file half written"
            )
        if len(set(outputs.values())) != len(outputs):
            wrong.append(f"topics: {', '.join(outputs)} must be different topics, not {outputs}")
        if wrong:
            raise ValueError("\n".join(wrong))
        return self
