"""Whatever the input topics hold: the job goes on, and each record comes out."""

from __future__ import annotations

import time

import pytest

from streaming.judge.contract import is_stub
from tests.awkward_records import ELSEWHERE, LARGEST, SETTINGS, Awkward, awkward_records
from tests.conftest import Configure
from tests.system.conftest import Application, MakeService
from tests.system.ledger import Ledger
from tests.system.random_records import publish_generated
from tests.system.special_records import SpecialTopics, publish_specials

_FOREVER_MS = str((1 << 63) - 1)


@pytest.mark.thorough
def test_the_job_goes_on_whatever_the_input_holds_and_each_record_comes_out(
    application: Application, make_service: MakeService, configure: Configure
) -> None:
    topics = SpecialTopics(application.input)
    service, ledger = make_service(*SETTINGS, *topics.overrides)
    open_to_all = {"compression.type": "producer", "message.timestamp.after.max.ms": _FOREVER_MS}
    configure(application.input, **{"max.message.bytes": LARGEST, **open_to_all})
    configure(application.output, **{"max.message.bytes": LARGEST})
    ledger.publish_with(**{"compression.type": "zstd", "message.max.bytes": 200_000_000})
    ledger.check = service.check
    # 1. Some wait for the job in one batch, the others come while it runs.
    corpus = list(awkward_records())
    for number, record in enumerate(corpus[:-8]):
        _publish(ledger, application, record, number % 2)
    service.start()
    for number, record in enumerate(corpus[-8:]):
        _publish(ledger, application, record, number % 2)
    ledger.wait_for_all(180)
    # 2. Generated ones.
    publish_generated(ledger, application)
    publish_specials(ledger, application, topics)
    ledger.wait_for_all(180)
    # Most are plain, and forwarders take those: they are due before the judge can hold them to order.
    ledger.verify(least_checked=0.1)
    assert ledger.cancelled()
    for answer in ledger.answers:
        assert set(answer.headers) >= set(ledger.asked_with.get(answer.id, ())), "they come back with the answer"
    assert service.stop() == 0, service.log[-3000:]
    # 3. Each under its code, and whole where the dead-letter topic takes it.
    came = {record.id: record for record in ledger.got}
    for identity, name in ledger.names.items():
        expected = next(record for record in corpus if record.name == name)
        became = came[identity].last("delayline-error"), is_stub(came[identity], ledger.sent[identity])
        assert became == (expected.error, expected.is_stub), name


def _publish(ledger: Ledger, application: Application, record: Awkward, partition: int) -> None:
    """Publish a record, and then two of which nothing may be lost."""
    key, value = record.make()
    headers = [
        (name, application.other.encode() if content == ELSEWHERE.encode() else content)
        for name, content in record.headers
    ]
    ledger.publish(
        application.input, value, headers, key=key, partition=partition, name=record.name,
        output=application.dead if record.error else application.output, delay_ms=record.delay_ms,
        timestamp_ms=int(time.time_ns() // 1_000_000 * record.stamp_factor),
    )  # fmt: skip
    for _ in range(2):
        ledger.publish(
            application.input, b"good", [("deliver-after", b"1s")], key=b"good", partition=partition,
            output=application.output, delay_ms=1_000,
        )  # fmt: skip
    # One batch for each record: a compressed one may be as large as it likes.
    ledger.flush()
