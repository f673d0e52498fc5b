"""Records that hypothesis chooses: some say when they are due, and others are errors."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.system.conftest import Application
from tests.system.ledger import Header, Ledger

_RESERVED = ["deliver-at", "deliver-after", "delay-level", "deliver-to"]
# Names that mean nothing to the job. The client that publishes cuts a name at a zero byte.
NAMES = st.one_of(
    st.sampled_from(["", "x", "deliver_at", "deliver-at ", "delayline-id", "delayline-stub", "ü"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30),
).filter(lambda name: name.lower() not in _RESERVED)
VALUES = st.one_of(st.none(), st.binary(max_size=2_000))
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=20)
_DELAYS = st.integers(0, 4_000).flatmap(
    lambda ms: st.sampled_from([(ms, b"%d" % ms), (ms, b"%dms" % ms), (ms, b'"%dms"' % ms), (ms, b" %d " % ms)])
)
# No form of a delay or a topic has such a byte.
NONSENSE = st.one_of(st.none(), st.binary(max_size=3_000).map(lambda value: value + b"\xff"))
# Not `st.randoms`: their draws must be the same if hypothesis runs an example twice, but the messages to choose from
# depend on earlier ones.
CHANCES = st.integers(0, 1 << 32).map(Random)


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
    st.tuples(st.sampled_from(_RESERVED), NONSENSE).map(lambda header: ([header], None, True)),
    st.integers(2, 300).map(lambda times: ([("delay-level", b"1")] * times, None, True)),
    # The job refuses the name, whatever the value.
    st.tuples(st.sampled_from(["Deliver-At", "DELIVER-AFTER", "Delay-level", "deliver-To"]), VALUES).map(
        lambda header: ([header], None, True)
    ),
)
_RECORDS = st.builds(Generated, VALUES, VALUES, HEADERS, _SCHEDULES, CHANCES)


def publish_generated(ledger: Ledger, application: Application) -> None:
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
