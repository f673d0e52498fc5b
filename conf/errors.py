"""The one tree of errors. Each has a code to search for, and says what was wrong and what to do.

DelaylineError
|-- SettingError, UsageError                      called wrongly: exit code 2
|-- SetupError: JarsMissing, JavaMissing, BrokerFailed
|-- KafkaError
|   |-- BrokerUnreachable: LoginRefused, CertificateRefused
|   |-- TopicMissing, TopicMismatch
|   |-- RecordsExpired, RecordUnreadable          of the input
|   `-- DeadLetterRefused, DeliveryFailed, PublishFailed, PositionInvalid
|-- StorageError
|   |-- StorageFailed                             full, read-only, not there
|   |-- CheckpointUnreadable, CheckpointVersion
|   `-- BucketUnreadable                          corrupt data
|-- InvariantViolated: LateRowsDropped, CutoffMismatch
|-- CheckpointMismatch, ApplicationHeld, ClockBehind
|-- QueryFailed, ServiceStopping, InjectedFailure
`-- Rejected                                      a message becomes a dead letter
    |-- TwoDelays, BadDeliverAt, BadDeliverAfter, BadDelayLevel, DelayTooLong
    |-- BadDeliverTo, TopicNotAllowed, TopicUnknown
    `-- MessageTooLarge, RecordRefused
"""

from __future__ import annotations

from typing import ClassVar


class DelaylineError(Exception):
    """Root of every error that Delayline raises on purpose.

    `code` is stable: scripts, dead letters and searches rely on it. `exit_code` is what the command line
    ends with: 2 for what the caller can mend by calling otherwise, 1 for the rest.
    """

    code: ClassVar[str] = "delayline-error"
    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        return f"{self.code}: {super().__str__()}"


class SettingError(DelaylineError):
    """A setting is unknown, unreadable or out of range. Names the key, the value and what is allowed."""

    code = "bad-setting"
    exit_code = 2


class UsageError(DelaylineError):
    """A command was called with arguments that cannot be carried out."""

    code = "bad-usage"
    exit_code = 2


class SetupError(DelaylineError):
    """What the service needs on this machine is missing or does not start."""


class KafkaError(DelaylineError):
    """Brokers, topics or records stand in the way."""


class StorageError(DelaylineError):
    """The checkpoint or the table of sealed buckets cannot be read or written."""


class InvariantViolated(DelaylineError):
    """An invariant does not hold (docs/architecture.md): a fault of Delayline, which stops before it does harm."""

    code = "invariant-violated"


class JarsMissing(SetupError):
    """The Java libraries of Spark's connectors or of the embedded broker have not been fetched."""

    code = "jars-missing"


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
    """A broker refused the user name, the password or the SASL mechanism of [kafka]."""

    code = "login-refused"


class CertificateRefused(BrokerUnreachable):
    """TLS failed: the broker's certificate is not trusted, or it refused the client's."""

    code = "certificate-refused"


class TopicMissing(KafkaError):
    """A topic that the job needs does not exist. Says which, and how to create it."""

    code = "topic-missing"


class TopicMismatch(KafkaError):
    """A topic exists in a form the job cannot work with (partition count, cleanup policy, a right that it lacks)."""

    code = "topic-mismatch"


class RecordsExpired(KafkaError):
    """Input records were deleted before they were read. Says which: topic, partition, offsets."""

    code = "records-expired"


class RecordUnreadable(KafkaError):
    """An input record has a timestamp that Spark cannot read. Says which: topic, partition, offset, timestamp."""

    code = "record-unreadable"


class DeadLetterRefused(KafkaError):
    """A message is refused by its output topic and by the dead-letter topic as well. Says which one."""

    code = "dead-letter-refused"


class PublishFailed(KafkaError):
    """The broker refused or did not confirm a published message."""

    code = "publish-failed"


class PositionInvalid(KafkaError):
    """How far dead letters are resent cannot be read, or cannot be kept, beside the consumer group's offsets."""

    code = "position-invalid"


class CheckpointMismatch(DelaylineError):
    """The checkpoint, the tables and the progress topic do not tell one story; going on could lose or double."""

    code = "checkpoint-mismatch"


class ApplicationHeld(DelaylineError):
    """Another process holds the lease of this application id, and it alone may deliver and seal. Says who it is."""

    code = "application-held"


class CheckpointUnreadable(StorageError):
    """A file of the checkpoint is missing or damaged. Says which, and what can be done without it."""

    code = "checkpoint-unreadable"


class CheckpointVersion(StorageError):
    """A file of the checkpoint is in a format that this version of Delayline, or its Spark, does not know."""

    code = "checkpoint-version"


class StorageFailed(StorageError):
    """The storage cannot be written or read: it is full, read-only, not there, or refuses. Says where."""

    code = "storage-failed"


class ClockBehind(DelaylineError):
    """The host's clock shows far less than it did before: to wait until it has caught up could take hours."""

    code = "clock-behind"


class LateRowsDropped(InvariantViolated):
    """Spark dropped rows behind the watermark, which must never happen to a message (invariant 6)."""

    code = "late-rows-dropped"


class CutoffMismatch(InvariantViolated):
    """Two parts of one batch disagree on its cutoff, or a cutoff went back (invariants 2 and 3)."""

    code = "cutoff-mismatch"


class DeliveryFailed(KafkaError):
    """The transaction with the output topics could not be completed; Spark retries the task."""

    code = "delivery-failed"


class QueryFailed(DelaylineError):
    """The query ended by an error. Nothing is lost: the next start replays the batch that failed."""

    code = "query-failed"


class ServiceStopping(DelaylineError):
    """The job was asked to end, so that no further batch begins. Not a failure."""

    code = "service-stopping"


class BucketUnreadable(StorageError):
    """A stored bucket, segment or state value is missing, or is not what its metadata says."""

    code = "bucket-unreadable"


class InjectedFailure(DelaylineError):
    """Raised by a failpoint, in tests only (`conf.failpoints`)."""

    code = "injected-failure"


class Rejected(DelaylineError):
    """A message that cannot be scheduled, or delivered: it goes to the dead-letter topic under this error's code."""

    code = "rejected"


class TwoDelays(Rejected):
    """More than one delay header on one message."""

    code = "two-delays"


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


class DelayTooLong(Rejected):
    """The delay is above `limits.max_delay`."""

    code = "delay-too-long"


class MessageTooLarge(Rejected):
    """Key, value and headers are above `limits.max_message_bytes`, or the record is over its topic's own limit."""

    code = "message-too-large"


class RecordRefused(Rejected):
    """The output topic does not take the record as it is: for want of a key, or for its timestamp."""

    code = "record-refused"


class TopicNotAllowed(Rejected):
    """The deliver-to topic is not on the allow-list."""

    code = "topic-not-allowed"


class TopicUnknown(Rejected):
    """The deliver-to topic is allowed, but did not exist when the job started."""

    code = "topic-unknown"
