"""The sections of the settings: each setting with its bounds and default.

`conf.setting_types` checks single values, `conf.topic_tables` has the sections with tables for single topics, and
`conf.settings` puts all together.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from conf.setting_types import (
    DAY,
    HOUR,
    LONGEST,
    MINUTE,
    MOST,
    SECOND,
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
    each_once,
    one_of,
    read_list,
)
from conf.spark_options import FIXED_OPTIONS, TABLE_DEFAULTS

# The largest message that can be carried: the ready log's record of it is smaller than the largest request of a broker.
MOST_MESSAGE_BYTES = 64 * 1024 * 1024


class KafkaSettings(OptionTable):
    """How to reach the brokers. Other keys are passed to every Kafka client (`conf.kafka.options`)."""

    bootstrap_servers: ServerList = "127.0.0.1:9092"
    # `conf.load` adds the file's properties to the passed-on keys.
    client_properties: FilePath = ""
    outage_limit: Annotated[int, duration(SECOND, DAY)] = 5 * MINUTE


class SparkSettings(OptionTable):
    """Spark options by their own names, over Delayline's defaults (`streaming.spark.options`)."""

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

    input: Annotated[
        tuple[TopicName, ...],
        BeforeValidator(read_list),
        Field(min_length=1),
        AfterValidator(each_once),
    ] = ("delayline-in",)
    output: TopicName = "delayline-out"
    allowed_outputs: Annotated[tuple[TopicPattern, ...], BeforeValidator(read_list)] = ()
    dead_letter: TopicName = "delayline-dead-letter"
    skip_expired: bool = False
    # TOML has no null: the file writes "".
    results: Annotated[TopicName | None, BeforeValidator(lambda name: name or None)] = None


class StorageSettings(Section):
    """The place of the checkpoint and the table: a local path or any Hadoop URI."""

    path: StoragePath = "./data"


class LimitSettings(Section):
    """Which messages are accepted, and how many a batch takes."""

    # Kafka's own default for a topic's max.message.bytes.
    max_message_bytes: Annotated[int, Bounded(1, MOST_MESSAGE_BYTES)] = 1_048_588
    messages_per_trigger: Count = 500_000


class ClockSettings(Section):
    """How often a batch starts, how far ahead of the clock it stages, and how far that may be off."""

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
    """How staged messages are released: in how many processes, and in which Kafka transactions."""

    processes: Annotated[int, Bounded(0, 64)] = 1
    lead: Annotated[int, duration(1, 10 * SECOND)] = 100
    slice: Annotated[int, duration(1, MINUTE)] = 20
    transaction_messages: Count = 3_000
    # 0 means unlimited.
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
