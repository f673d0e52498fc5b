"""Whatever the input topics hold: the job goes on, and each record comes out."""

from __future__ import annotations

import time
from itertools import count
from random import Random
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from streaming.judge.contract import is_stub
from tests.awkward_records import ELSEWHERE, LARGEST, SETTINGS, Awkward, awkward_records
from tests.conftest import Configure
from tests.system.conftest import Application, MakeService
from tests.system.ledger import Header, Ledger

_FOREVER_MS = str((1 << 63) - 1)
_RESERVED = ["deliver-at", "deliver-after", "delay-level", "deliver-to"]
# Names that mean nothing to the job. The client that publishes cuts a name at a zero byte.
_NAMES = st.one_of(
    st.sampled_from(["", "x", "Deliver-At", "deliver-at ", "delayline-id", "delayline-stub", "ü"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30),
).filter(lambda name: name not in _RESERVED)
_VALUES = st.one_of(st.none(), st.binary(max_size=2_000))
_HEADERS = st.lists(st.tuples(_NAMES, _VALUES), max_size=20)
_DELAYS = st.integers(0, 4_000).flatmap(
    lambda ms: st.sampled_from([(ms, b"%d" % ms), (ms, b"%dms" % ms), (ms, b'"%dms"' % ms), (ms, b" %d " % ms)])
)
# No form of a delay or a topic has such a byte.
_NONSENSE = st.one_of(st.none(), st.binary(max_size=3_000).map(lambda value: value + b"\xff"))


class Generated(NamedTuple):
    """A record: `others` mean nothing to the job. `schedule` has headers that do, the delay in ms, and if it is bad."""

    key: bytes | None
    value: bytes | None
    others: list[Header]
    schedule: tuple[list[Header], int | None, bool]
    chance: Random


_SCHEDULES: st.SearchStrategy[tuple[list[Header], int | None, bool]] = st.one_of(
    st.just(([], None, False)),
    _DELAYS.map(lambda delay: ([("deliver-after", delay[1])], delay[0], False)),
    st.tuples(st.sampled_from(_RESERVED), _NONSENSE).map(lambda header: ([header], None, True)),
    st.integers(2, 300).map(lambda times: ([("delay-level", b"1")] * times, None, True)),
)
_RECORDS = st.builds(Generated, _VALUES, _VALUES, _HEADERS, _SCHEDULES, st.randoms(use_true_random=False))


def test_the_job_goes_on_whatever_the_input_holds_and_each_record_comes_out(
    application: Application, make_service: MakeService, configure: Configure
) -> None:
    service, ledger = make_service(*SETTINGS)
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
    _publish_generated(ledger, application)
    ledger.wait_for_all(180)
    ledger.verify(least_checked=0.2)
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


def _publish_generated(ledger: Ledger, application: Application) -> None:
    """Publish a few hundred records that hypothesis chooses, each followed by a good one."""
    numbers = count()

    @given(st.lists(_RECORDS, min_size=3, max_size=12))
    @settings(max_examples=40, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    def publish(
        records: list[
            tuple[bytes | None, bytes | None, list[Header], tuple[tuple[Header, ...], int | None, bool], object]
        ],
    ) -> None:
        for key, value, others, (schedule, delay_ms, is_bad), chance in records:
            headers = [*others, *schedule]
            chance.shuffle(headers)  # type: ignore[attr-defined]
            output = application.dead if is_bad else application.output
            partition = next(numbers) % 2
            ledger.publish(
                application.input, value, headers, key=key, partition=partition, output=output, delay_ms=delay_ms
            )
            ledger.publish(application.input, b"good", key=b"good", partition=partition, output=application.output)

    publish()
