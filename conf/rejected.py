"""The reasons why a message becomes a dead letter: errors with the codes that dead letters carry."""

from __future__ import annotations

from typing import Literal

from conf.errors import DelaylineError

# The most bytes of a dead letter's error text.
MOST_TEXT_BYTES = 1_024
_CUT = "..."


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
    """A header that makes a message repeat is there twice, is not such a rule, or has no meaning on its topic.

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
    """The output topic was deleted, forbidden, made an input or results topic, or lost the message's partition."""

    code = "topic-closed"
