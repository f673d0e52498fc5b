"""All errors of Delayline. Each has a code to search for, and a text with the cause and the remedy.

DelaylineError
|-- SettingError, UsageError                      wrong call: exit code 2
|-- SetupError: JarsMissing, JavaMissing, SparkUnsupported, BrokerFailed
|-- KafkaError
|   |-- BrokerUnreachable: LoginRefused, CertificateRefused
|   |-- TopicMissing, TopicMismatch, RightMissing
|   |-- RecordsExpired, RecordUnreadable          of the input
|   |-- ReadyLogLost                              what was handed over is not all there
|   `-- DeliveryFailed, PublishFailed, PositionInvalid
|-- StorageError
|   |-- StorageFailed                             full, read-only, not there
|   |-- CheckpointUnreadable, CheckpointVersion
|   `-- BucketUnreadable                          corrupt data
|-- InvariantViolated: LateRowsDropped, CutoffMismatch
|-- CheckpointMismatch, ApplicationHeld, ClockBehind, ClockAhead
|-- NameTaken, MembershipRefused, ProcessFailed
|-- QueryFailed, ServiceStopping, InjectedFailure
`-- Rejected                                      a message becomes a dead letter
    |-- TwoDelays, BadDeliverAt, BadDeliverAfter, BadDelayLevel, DelayTooLong
    |-- BadDeliverTo, TopicNotAllowed, TopicUnknown, TopicClosed
    `-- MessageTooLarge, RecordRefused
"""

from __future__ import annotations

from typing import ClassVar, Literal

# The most bytes of a dead letter's error text.
MOST_TEXT_BYTES = 1_024
_CUT = "..."
_MOST_QUOTED = 40


def quoted(value: str | bytes) -> str:
    """Return how an error quotes a value that a stranger has written: its first 40 characters or bytes.

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
    """A setting is unknown, unreadable or out of range. Names the key, the value and the allowed values."""

    code = "bad-setting"
    exit_code = 2


class UsageError(DelaylineError):
    """The arguments of a command are wrong or contradict each other."""

    code = "bad-usage"
    exit_code = 2


class SetupError(DelaylineError):
    """Something that the service needs on this machine is missing or does not start."""


class KafkaError(DelaylineError):
    """A broker, a topic or a record is missing, wrong or refused."""


class StorageError(DelaylineError):
    """The checkpoint or the table of sealed buckets cannot be read or written."""


class InvariantViolated(DelaylineError):
    """An invariant (docs/internals/invariants.md) is violated, by a defect. The job stops before it does harm."""

    code = "invariant-violated"


class JarsMissing(SetupError):
    """The Java libraries of Spark's connectors or of the embedded broker have not been fetched."""

    code = "jars-missing"


class SparkUnsupported(SetupError):
    """The installed pyspark is not one that this Delayline was run with."""

    code = "spark-unsupported"


class MissingExtra(SetupError):
    """The packages of an optional part are not installed."""

    code = "extra-missing"


class JavaMissing(SetupError):
    """No Java 17 or newer was found."""

    code = "java-missing"


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
    """A topic that the job needs does not exist. Names it, and the command that creates it."""

    code = "topic-missing"


class TopicMismatch(KafkaError):
    """The job cannot use a topic: its partition count, its cleanup policy, or a missing permission."""

    code = "topic-mismatch"


class RightMissing(KafkaError):
    """The login of [kafka] lacks a right, by the brokers' access control."""

    code = "right-missing"


class RecordsExpired(KafkaError):
    """Input records were deleted before they were read. Names topic, partition and offsets."""

    code = "records-expired"


class RecordUnreadable(KafkaError):
    """An input record has a timestamp that Spark cannot read. Names topic, partition, offset and timestamp."""

    code = "record-unreadable"


class PublishFailed(KafkaError):
    """The broker refused or did not confirm a published message."""

    code = "publish-failed"


class PositionInvalid(KafkaError):
    """The position of `resend`, kept with the consumer group's offsets, cannot be read or written."""

    code = "position-invalid"


class CheckpointMismatch(DelaylineError):
    """Checkpoint, tables and progress topic contradict each other. To continue could lose or repeat messages."""

    code = "checkpoint-mismatch"


class ApplicationHeld(DelaylineError):
    """Another process has taken over this application id; only that one may hand over and seal."""

    code = "application-held"


class CheckpointUnreadable(StorageError):
    """A file of the checkpoint is missing or corrupt. Names it, and the way to continue without it."""

    code = "checkpoint-unreadable"


class CheckpointVersion(StorageError):
    """A file of the checkpoint has a format that this version of Delayline, or of Spark, cannot read."""

    code = "checkpoint-version"


class FormatMismatch(StorageError):
    """The table, or a record of an internal topic, has a format that this version of Delayline cannot read."""

    code = "format-mismatch"


class StorageFailed(StorageError):
    """The storage cannot be read or written: it is full, read-only, missing, or denies access. Names the path."""

    code = "storage-failed"


class LogEntryReplaced(StorageError):
    """A process that had lost the lease has replaced an entry of the table's log on S3. It was put back."""

    code = "log-entry-replaced"


class ReadyLogLost(KafkaError):
    """A log of the release is not the one that was written to, or records of it that are not released are gone."""

    code = "ready-log-lost"


class NameTaken(DelaylineError):
    """Another release process, or another forwarder, with the same name has taken the place of this one."""

    code = "name-taken"


class MembershipRefused(DelaylineError):
    """The consumer group of the release processes, or of the forwarders, does not take this one."""

    code = "membership-refused"


class ProcessFailed(DelaylineError):
    """A release process or a forwarder of the job ended again and again, without an error of its own."""

    code = "process-failed"


class ClockBehind(DelaylineError):
    """The host's clock was set far back. To wait until it has caught up could take hours."""

    code = "clock-behind"


class ClockAhead(DelaylineError):
    """The host's clock is far ahead of the broker's. By it, messages would be handed over long before they are due."""

    code = "clock-ahead"


class LateRowsDropped(InvariantViolated):
    """Spark dropped rows behind the watermark, and with them messages (invariant 6)."""

    code = "late-rows-dropped"


class CutoffMismatch(InvariantViolated):
    """Two parts of one batch disagree on its cutoff, or a cutoff went back (invariants 2 and 3)."""

    code = "cutoff-mismatch"


class DeliveryFailed(KafkaError):
    """A transaction with the ready log or the output topics could not be completed. It is tried again a few times."""

    code = "delivery-failed"


class QueryFailed(DelaylineError):
    """The query failed. Nothing is lost: the next start replays the batch that failed."""

    code = "query-failed"


class ServiceStopping(DelaylineError):
    """The job is ending and starts no further batch. Not a failure."""

    code = "service-stopping"


class BucketUnreadable(StorageError):
    """A stored bucket, segment or state value is missing or corrupt: it contradicts its metadata."""

    code = "bucket-unreadable"


class InjectedFailure(DelaylineError):
    """Raised by a failpoint, in tests only (`conf.failpoints`)."""

    code = "injected-failure"


class Rejected(DelaylineError):
    """A message cannot be scheduled or delivered. It goes to the dead-letter topic with this error's code.

    Its text has `MOST_TEXT_BYTES` bytes of UTF-8 at most, whatever it quotes.
    """

    code = "rejected"

    def __str__(self) -> str:
        text = super().__str__()
        encoded = text.encode(errors="replace")
        if len(encoded) <= MOST_TEXT_BYTES:
            return encoded.decode()
        return encoded[: MOST_TEXT_BYTES - len(_CUT.encode())].decode(errors="ignore") + _CUT


class TwoDelays(Rejected):
    """More than one delay header on one message."""

    code = "two-delays"


class HeaderCase(Rejected):
    """A header's name differs by case alone from one that has a meaning."""

    code = "header-case"


class BadDeliverAt(Rejected):
    """The deliver-at header is neither epoch milliseconds nor ISO-8601 with an offset."""

    code = "bad-deliver-at"


class BadDeliverAfter(Rejected):
    """The deliver-after header is not a duration."""

    code = "bad-deliver-after"


class BadDelayLevel(Rejected):
    """The delay-level header is not a whole number of 0 or more."""

    code = "bad-delay-level"


class BadDeliverTo(Rejected):
    """The deliver-to header is null, repeated, or not a topic name."""

    code = "bad-deliver-to"


class BadCancel(Rejected):
    """The delayline-cancel header is repeated, or is no message id; or delayline-cancel-name is no name."""

    code = "bad-cancel"


class BadReplaces(Rejected):
    """The delayline-replaces header is repeated, or is no message id; or delayline-if is no condition."""

    code = "bad-replaces"


class BadName(Rejected):
    """The delayline-name header is repeated, empty, beside delayline-replaces, or has no meaning on its topic.

    Or delayline-answer is repeated, says anything but true, or is on a message without a name.
    """

    code = "bad-name"


class BadExpiry(Rejected):
    """The header that the policy expiry_header names is repeated, or is no instant."""

    code = "bad-expiry"


class Expired(Rejected):
    """The message was not delivered by the time that a policy of its input topic sets: expire_after, expiry_header."""

    code = "expired"


class BadSchedule(Rejected):
    """A header of another scheduler, which a preset reads, is nothing that Delayline can follow."""

    code = "bad-schedule"


class BadTimestamp(Rejected):
    """The delay would count from a record timestamp that is none in milliseconds: the message would be due in 1970."""

    code = "bad-timestamp"


class DelayTooLong(Rejected):
    """The delay exceeds `limits.max_delay`, or the policy `max_delay` of its input topic."""

    code = "delay-too-long"


class TooManyWaiting(Rejected):
    """As many messages of the input topic wait as its policy `max_waiting` allows."""

    code = "too-many-waiting"


class MessageTooLarge(Rejected):
    """Key, value and headers exceed `limits.max_message_bytes`, or the record exceeds the limit of its topic."""

    code = "message-too-large"


class RecordRefused(Rejected):
    """The output topic refuses the record, for its missing key, its timestamp, or another reason of the broker.

    `cause` is "other" where the broker's error does not say whether the record is to blame.
    """

    code = "record-refused"

    def __init__(self, text: str, cause: Literal["record", "timestamp", "other"] = "record") -> None:
        super().__init__(text)
        self.cause = cause


class TopicNotAllowed(Rejected):
    """The deliver-to topic is not on the allow-list."""

    code = "topic-not-allowed"


class TopicUnknown(Rejected):
    """The deliver-to topic is allowed, but did not exist when the job started, or the job may not write to it."""

    code = "topic-unknown"


class TopicClosed(Rejected):
    """The output topic was deleted or barred, or lost the message's partition, while the message waited."""

    code = "topic-closed"
