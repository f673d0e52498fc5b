"""The contract with publishers, end to end: bytes, header forms, and each kind of wrong header."""

from __future__ import annotations

import time
from functools import partial

import pytest

from tests.conftest import Configure
from tests.system.conftest import Application, MakeService
from tests.system.ledger import Got, Header, Ledger
from tests.system.service import Service

_MALFORMED: dict[str, list[Header]] = {
    "bad-deliver-at": [("deliver-at", b"tomorrow")],
    "bad-deliver-after": [("deliver-after", None)],
    "bad-delay-level": [("delay-level", b"-1")],
    "bad-deliver-to": [("deliver-to", b"\xff\xfe")],
    "two-delays": [("deliver-after", b"1s"), ("delay-level", b"1")],
    "delay-too-long": [("deliver-after", b"367d")],
    "topic-not-allowed": [("deliver-to", b"somewhere-else")],
    "topic-unknown": [("deliver-to", b"allowed-but-absent")],
    "message-too-large": [("x", b"y" * 960_000)],
}


def test_bytes_are_delivered_unchanged_and_bad_headers_go_to_the_dead_letter_topic_under_their_code(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service(
        f"topics.allowed_outputs=allowed-*,{application.other}", "limits.max_message_bytes=950000"
    )
    headers: list[Header] = [("a", b"1"), ("a", None), ("b", b""), ("a", b"\x00\xff"), ("ünïcode", b"2")]
    forms: list[tuple[list[Header], int | None]] = [
        ([], None),
        ([("deliver-after", b"2s")], 2000),
        ([("delay-level", b"99")], 3000),
    ]
    bodies = [b"", None, b"\x00" * 10, b"x" * 900_000, "grün".encode(), b"plain"]
    keys = [None, b"", b"\x00\x01\xff", b"key", "schlüssel".encode()]
    for number, (body, key) in enumerate((body, key) for body in bodies for key in keys):
        form, delay = forms[number % 3]
        ledger.publish(application.input, body, headers + form, key=key, output=application.output, delay_ms=delay)
    malformed: dict[bytes, str] = {}
    for code, wrong in _MALFORMED.items():
        malformed[code.encode()] = code
        ledger.publish(application.input, code.encode(), [*headers, *wrong], key=b"k", output=application.dead)
    service.overrides.append('levels.delays=["1s","3s"]')
    service.start()
    ledger.wait_for_all(60)
    # They fall due while the job starts, so that no order is theirs.
    ledger.verify(least_checked=0)
    dead = {record.value: record for record in ledger.got if record.topic == application.dead}
    assert {value: record.last("delayline-error") for value, record in dead.items()} == malformed
    assert all(record.last("delayline-error-text") for record in dead.values())
    # Resent without the wrong headers, exactly these messages are delivered, with a link to their dead letters.
    drop_headers = [
        part for name in ("deliver-at", "deliver-after", "delay-level", "x") for part in ("--drop-header", name)
    ]
    drop_headers += ["--drop-header", "deliver-to"]
    resend = Service(application.folder / "resend", service.overrides)
    resend.folder.mkdir()
    assert resend.command("resend", *drop_headers) == 0, resend.log
    ids = {record.id for record in dead.values()}
    ledger.wait_for(lambda: len(_resent(ledger)) >= len(ids), 60)
    assert sorted(record.last("delayline-first-id") or "" for record in _resent(ledger)) == sorted(ids)
    assert {record.topic for record in _resent(ledger)} == {application.output}
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
def test_a_message_that_its_output_topic_refuses_is_a_dead_letter_and_all_others_are_delivered(
    application: Application, make_service: MakeService, configure: Configure
) -> None:
    service, ledger = make_service()
    configure(application.other, **{"cleanup.policy": "compact"})
    configure(application.output, **{"message.timestamp.before.max.ms": "604800000"})
    other = ("deliver-to", application.other.encode())
    in_2001_ms = 1_000_000_000_000
    past = ("deliver-at", str(in_2001_ms).encode())

    def publish(value: bytes) -> None:
        for number in range(30):
            key = b"%d" % (number % 4)
            ledger.publish(application.input, value, key=key, output=application.output)
            ledger.publish(application.input, value, [other], key=key, output=application.other)
            if not number % 10:
                # Not refused for its age: it has the time of writing.
                ledger.publish(
                    application.input, b"past", [past], key=key, output=application.output, deliver_at_ms=in_2001_ms
                )
                ledger.publish(application.input, b"keyless", [other], output=application.dead)

    publish(b"waits for the job")
    service.start()
    ledger.wait_for_all(60)
    publish(b"comes while it runs")
    ledger.wait_for_all(60)
    ledger.verify()
    dead = [record for record in ledger.got if record.topic == application.dead]
    assert {record.last("delayline-error") for record in dead} == {"record-refused"}
    # Without the wrong header, they are delivered.
    resend = Service(application.folder / "resend", service.overrides)
    resend.folder.mkdir()
    assert resend.command("resend", "--code", "record-refused", "--drop-header", "deliver-to") == 0, resend.log
    ledger.wait_for(lambda: len(_resent(ledger)) >= len(dead), 60)
    resent = {(record.value, record.topic, record.last("delayline-error")) for record in _resent(ledger)}
    assert resent == {(b"keyless", application.output, None)}
    assert len(_resent(ledger)) == len(dead)
    assert service.stop() == 0, service.log[-3000:]


def _resent(ledger: Ledger) -> list[Got]:
    return [record for record in ledger.got if record.last("delayline-first-id") is not None]


@pytest.mark.thorough
def test_records_with_timestamps_far_from_now_are_delivered_and_none_is_early(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service()
    now = time.time_ns() // 1_000_000
    year = 365 * 86_400_000
    for number in range(50):
        publish = partial(ledger.publish, application.input, key=str(number).encode(), output=application.output)
        old = now - 3 * year
        publish(b"old and plain", timestamp_ms=old)
        publish(b"old", [("deliver-after", b"1h")], timestamp_ms=old, delay_ms=3_600_000)
        soon = now + 12_000
        at = [("deliver-at", str(soon).encode())]
        publish(b"ahead", at, timestamp_ms=now + 3_000_000, deliver_at_ms=soon)
    service.start()
    ledger.wait_for_all(60)
    ledger.verify()
    assert service.stop() == 0, service.log[-3000:]
