"""The errors of Delayline. Each has a code to search for, and a message with the cause and the remedy.

DelaylineError
|-- SettingError, UsageError                      wrong call: exit code 2
|-- SetupError: JarsMissing, JavaMissing, SparkUnsupported, BrokerFailed
|-- KafkaError
|   |-- BrokerUnreachable: LoginRefused, CertificateRefused
|   |-- TopicMissing, TopicMismatch, RightMissing
|   |-- RecordsExpired, RecordUnreadable          of the input
|   |-- ReadyLogLost                              staged messages are missing
|   `-- DeliveryFailed, PublishFailed, PositionInvalid
|-- StorageError
|   |-- StorageFailed                             full, read-only, not there
|   |-- CheckpointUnreadable, CheckpointVersion
|   `-- BucketUnreadable                          corrupt data
|-- InvariantViolated: LateRowsDropped, CutoffMismatch
|-- CheckpointMismatch, ApplicationHeld, ClockBehind, ClockAhead
|-- NameTaken, MembershipRefused, ProcessFailed
|-- QueryFailed, ServiceStopping, InjectedFailure
`-- Rejected                                      a message becomes a dead letter (`conf.rejected`)
"""

from __future__ import annotations

from typing import ClassVar

_CUT = "..."
_MOST_QUOTED = 40


def quoted(value: str | bytes) -> str:
    """Return how an error quotes an untrusted value: its first 40 characters or bytes.

    For example `'10 parsecs'`.
    """
    return f"{value!r}" if len(value) <= _MOST_QUOTED else f"{value[:_MOST_QUOTED]!r}{_CUT}"


class DelaylineError(Exception):
    """Root of every error that Delayline raises on purpose.

    `code` is stable: scripts, dead letters and searches rely on it. `exit_code` is the exit code of the command line:
    2 if another call can succeed, 1 otherwise.
    """

    code: ClassVar[str] = "delayline-error"
    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        return f"{self.code}: {super().__str__()}"


class SettingError(DelaylineError):
    """A setting is unknown, unreadable or out of range. The message names the key, the value and the allowed values."""

    code = "bad-setting"
    exit_code = 2


class UsageError(DelaylineError):
    """The arguments of a command are wrong or contradict each other."""

    code = "bad-usage"
    exit_code = 2


class SetupError(DelaylineError):
    """Something that the service needs on this machine is missing or does not start."""


class KafkaError(DelaylineError):
    """A broker, a topic or a record is missing, invalid or refused."""


class StorageError(DelaylineError):
    """The checkpoint or the table of sealed buckets cannot be read or written."""


class InvariantViolated(DelaylineError):
    """A defect has violated an invariant (docs/internals/invariants.md). The job stops before it does harm."""

    code = "invariant-violated"


class JarsMissing(SetupError):
    """The Java libraries of Spark's connectors or of the embedded broker are missing."""

    code = "jars-missing"


class SparkUnsupported(SetupError):
    """This Delayline does not support the installed version of pyspark."""

    code = "spark-unsupported"


class MissingExtra(SetupError):
    """The packages of an optional feature are not installed."""

    code = "extra-missing"


class JavaMissing(SetupError):
    """No Java 17 or newer was found."""

    code = "java-missing"


class ZoneMissing(SetupError):
    """A message that waits repeats in a time zone that the installed package tzdata does not have."""

    code = "zone-missing"


class BrokerFailed(SetupError):
    """The embedded broker could not be formatted or started."""

    code = "broker-failed"


class BrokerUnreachable(KafkaError):
    """No broker answered at the configured bootstrap servers."""

    code = "broker-unreachable"


class LoginRefused(BrokerUnreachable):
    """A broker refused the login of [kafka] or its SASL mechanism, or no token could be fetched for it."""

    code = "login-refused"


class CertificateRefused(BrokerUnreachable):
    """TLS failed: the broker's certificate is not trusted, or it refused the client's."""

    code = "certificate-refused"


class TopicMissing(KafkaError):
    """A topic that the job needs does not exist."""

    code = "topic-missing"


class TopicMismatch(KafkaError):
    """The job cannot use a topic: its partition count, its cleanup policy, or a missing permission."""

    code = "topic-mismatch"


class RightMissing(KafkaError):
    """The login of [kafka] lacks a right, by the brokers' access control."""

    code = "right-missing"


class RecordsExpired(KafkaError):
    """Input records were deleted before they were read."""

    code = "records-expired"


class RecordUnreadable(KafkaError):
    """An input record has a timestamp that Spark cannot read."""

    code = "record-unreadable"


class PublishFailed(KafkaError):
    """The broker refused or did not confirm a published message."""

    code = "publish-failed"


class PositionInvalid(KafkaError):
    """The position of `resend`, kept with the consumer group's offsets, cannot be read or written."""

    code = "position-invalid"


class CheckpointMismatch(DelaylineError):
    """Checkpoint, tables and progress topic contradict each other. Continuing could lose or repeat messages."""

    code = "checkpoint-mismatch"


class ApplicationHeld(DelaylineError):
    """Another process holds this application id. Only the holder may stage and seal messages."""

    code = "application-held"


class CheckpointUnreadable(StorageError):
    """A file of the checkpoint is missing or corrupt."""

    code = "checkpoint-unreadable"


class CheckpointVersion(StorageError):
    """A file of the checkpoint has a format that this version of Delayline, or of Spark, cannot read."""

    code = "checkpoint-version"


class FormatMismatch(StorageError):
    """The table, or a record of an internal topic, has a format that this version of Delayline cannot read."""

    code = "format-mismatch"


class StorageFailed(StorageError):
    """The storage cannot be read or written: it is full, read-only or missing, or it denies access."""

    code = "storage-failed"


class LogEntryReplaced(StorageError):
    """A process that had lost the lease replaced an entry of the table's log on S3. The entry was restored."""

    code = "log-entry-replaced"


class ReadyLogLost(KafkaError):
    """The ready or the near log was created again, lost records or a shard's position, or has a damaged record."""

    code = "ready-log-lost"


class NameTaken(DelaylineError):
    """Another release process or forwarder uses the name of this one."""

    code = "name-taken"


class MembershipRefused(DelaylineError):
    """The consumer group of the release processes or of the forwarders refuses this process."""

    code = "membership-refused"


class ProcessFailed(DelaylineError):
    """A release process or a forwarder of the job ended repeatedly, without reporting an error."""

    code = "process-failed"


class ClockBehind(DelaylineError):
    """The host's clock was set far back. Waiting until it has caught up could take hours."""

    code = "clock-behind"


class ClockAhead(DelaylineError):
    """The host's clock is far ahead of the broker's clock. Messages would be released before they are due."""

    code = "clock-ahead"


class LateRowsDropped(InvariantViolated):
    """Spark dropped rows below the watermark, and with them messages (invariant 6)."""

    code = "late-rows-dropped"


class CutoffMismatch(InvariantViolated):
    """Two parts of one batch disagree on its cutoff, or a cutoff decreased (invariants 2 and 3)."""

    code = "cutoff-mismatch"


class DeliveryFailed(KafkaError):
    """A transaction with the ready log or the output topics failed, also after several retries."""

    code = "delivery-failed"


class QueryFailed(DelaylineError):
    """The query failed. Nothing is lost: the next start replays the batch that failed."""

    code = "query-failed"


class ServiceStopping(DelaylineError):
    """The job is stopping and starts no more batches. Not a failure."""

    code = "service-stopping"


class BucketUnreadable(StorageError):
    """A stored bucket, segment or state value is missing or corrupt: it contradicts its metadata."""

    code = "bucket-unreadable"


class InjectedFailure(DelaylineError):
    """Raised by a failpoint, in tests only (`conf.failpoints`)."""

    code = "injected-failure"
