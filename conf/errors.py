"""All errors of Delayline. Each has a code to search for, and a message with the cause and the remedy.

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
    """A broker, a topic or a record is missing, invalid or refused."""


class StorageError(DelaylineError):
    """The checkpoint or the table of sealed buckets cannot be read or written."""


class InvariantViolated(DelaylineError):
    """An invariant (docs/internals/invariants.md) is violated, by a defect. The job stops before it does harm."""

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
    """The ready log or the near log was created again, or has lost records that are not released."""

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
    """The name of a header differs only in case from a header of Delayline."""

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
    """The delayline-cancel header is repeated, or is not a message id; or delayline-cancel-name is not a name."""

    code = "bad-cancel"


class BadDeliverNow(Rejected):
    """The delayline-deliver-now header is repeated, is not a message id, or is next to another request header."""

    code = "bad-deliver-now"


class BadReplaces(Rejected):
    """The delayline-replaces header is repeated, or is not a message id; or delayline-if is not a condition."""

    code = "bad-replaces"


class BadName(Rejected):
    """The delayline-name header is repeated or empty, is combined with delayline-replaces, or not enabled on its topic.

    Or delayline-answer is repeated, says anything but true, or is on a message without a name.
    """

    code = "bad-name"


class BadRepeat(Rejected):
    """A header that makes a message repeat is repeated, is no such rule, or has no meaning on its topic.

    Or the rule comes too often, or never.
    """

    code = "bad-repeat"


class BadExpiry(Rejected):
    """The header that the policy expiry_header names is repeated, or is not an instant."""

    code = "bad-expiry"


class Expired(Rejected):
    """The message was not delivered before it expired, by the policies of its input topic."""

    code = "expired"


class BadSchedule(Rejected):
    """A header of another scheduler, which a preset reads, is invalid or not supported."""

    code = "bad-schedule"


class BadTimestamp(Rejected):
    """The record's timestamp, from which the delay counts, is not in milliseconds: the message would be due in 1970."""

    code = "bad-timestamp"


class DelayTooLong(Rejected):
    """The delay exceeds the policy `max_delay` of its input topic."""

    code = "delay-too-long"


class TooManyWaiting(Rejected):
    """The policy `max_waiting` of the input topic is reached."""

    code = "too-many-waiting"


class MessageTooLarge(Rejected):
    """Key, value and headers exceed `limits.max_message_bytes`, or the record exceeds the limit of its topic."""

    code = "message-too-large"


class RecordRefused(Rejected):
    """The output topic refuses the record, because of a missing key, its timestamp, or another reason of the broker.

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
    """The output topic was deleted, forbidden, or lost the message's partition, while the message waited."""

    code = "topic-closed"
