"""A resend refuses records that the job would refuse."""

from __future__ import annotations

from typing import Any

import pytest

from conf.load import load_settings
from sinks.release.expiry import Expiry
from sinks.resender import Outgoing
from state.checkpoint.batch_settings import batch_settings_from
from state.checkpoint.origin import CheckpointOrigin
from streaming.operations.resend_check import refusals
from tests.messages import PARTITIONS

NOW_MS, MINUTE, HOUR = 1_798_135_200_000, 60_000, 3_600_000
SETTINGS = load_settings(
    None,
    [
        "topics.input=delayline-in,other,endless,keyed,named",
        "policies.expire_after=1m",
        "policies.other.expiry_header=until",
        "policies.other.expire_after=",
        "policies.endless.expire_after=",
        *(
            f"policies.{topic}.{policy}"
            for topic, source in (("keyed", "key"), ("named", "header"))
            for policy in ("expire_after=", f"names={source}", "repeats=true")
        ),
    ],
    environ={},
)
PARTITION_COUNTS = PARTITIONS | dict.fromkeys(("keyed", "named"), 1) | {"delayline-results": 2}
BATCH_SETTINGS = batch_settings_from(SETTINGS, PARTITION_COUNTS, (0,), CheckpointOrigin("resend", 0, 1))


def outgoing(*headers: tuple[str, bytes | None], topic: str = "delayline-in", age_ms: int = HOUR) -> Outgoing:
    return Outgoing(topic, 0, NOW_MS - age_ms, b"k", b"v", list(headers))


def refused(*records: Outgoing) -> list[str | None]:
    return refusals(records, BATCH_SETTINGS, Expiry.of(SETTINGS), NOW_MS)


def until(after_ms: int) -> tuple[str, bytes]:
    return "until", b"%d" % (NOW_MS + after_ms)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (
            outgoing(("deliver-after", b"30m")),
            "it could not be delivered until 30 min after it was due, and expire_after of ",
        ),
        (outgoing(), "it could not be delivered until 1 h after it was due"),
        (outgoing(("deliver-after", b"59m")), None),
        (outgoing(("deliver-after", b"2h")), None),
        # As with --stamp now.
        (outgoing(("deliver-after", b"30m"), age_ms=0), None),
        (outgoing(topic="endless"), None),
        (outgoing(until(-1), topic="other"), "after the instant in its until"),
        (outgoing(until(1), topic="other"), None),
        (outgoing(topic="other"), None),
        # It expires before it is due: the batch already refuses it.
        (outgoing(("deliver-after", b"3h"), until(1), topic="other"), "expires before it is due"),
    ],
)
def test_what_would_expire_again_is_refused(record: Outgoing, why: str | None) -> None:
    (error,) = refused(record)
    assert (error is None) == (why is None)
    assert error is None or (error.startswith("expired: ") and (why or "") in error)


def test_each_record_is_refused_for_its_own_reason_and_requests_and_replacements_pass() -> None:
    request = outgoing(("delayline-cancel", b"delayline-in/0/1"))
    replacement = outgoing(("delayline-replaces", b"delayline-in/0/5000"), ("deliver-after", b"2h"))
    bad = outgoing(("deliver-after", b"soon"))
    codes: list[Any] = [
        None if error is None else error.partition(":")[0]
        for error in refused(replacement, outgoing(), request, bad, outgoing(age_ms=0), outgoing())
    ]
    assert codes == [None, "expired", None, "bad-deliver-after", None, "expired"]


OCCURRENCE, OWN_NAME = ("delayline-occurrence", b"7"), ("delayline-name", b"n")


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (outgoing(OCCURRENCE, OWN_NAME, topic="named"), "--drop-header delayline-name"),
        (outgoing(OCCURRENCE, topic="keyed"), "keyed takes names from keys"),
        (outgoing(OCCURRENCE, topic="named"), None),
        (outgoing(OWN_NAME, topic="named"), None),
        (outgoing(topic="keyed"), None),
        # It begins a schedule of its own. The header is a mistake of its publisher, and is left out.
        (outgoing(OCCURRENCE, ("delayline-repeat", b"every 10m"), topic="keyed"), None),
        (outgoing(OCCURRENCE, ("delayline-cancel-name", b"n"), topic="keyed"), None),
        (outgoing(OCCURRENCE, ("deliver-after", b"soon"), topic="keyed"), "bad-deliver-after"),
    ],
)
def test_occurrence_that_would_get_the_name_of_its_schedule_is_refused(record: Outgoing, why: str | None) -> None:
    """It would end the schedule, or be dropped for it."""
    others = outgoing(topic="keyed"), outgoing(OWN_NAME, topic="named")
    first, error, last = refused(others[0], record, others[1])
    assert (first, error is None, last) == (None, why is None, None)
    assert error is None or (why or "") in error
