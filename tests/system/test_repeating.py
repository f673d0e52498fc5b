"""Messages that repeat, through the whole service: each occurrence once, in order, with its number, across crashes."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest

from streaming.judge.schedules import Repeated
from tests.eventually import assert_eventually
from tests.system.conftest import Application, MakeService
from tests.system.ledger import Header, Ledger

_EVERY_MS = 2_000
_SETTINGS = ("policies.repeats=true", "policies.repeat_interval=1s", "policies.names=header")
# Where a driver is killed.
_POINTS = ("following", "transaction-open@2", "followed", "staged")


def repeat(
    ledger: Ledger,
    application: Application,
    number: int,
    every_ms: int = _EVERY_MS,
    most: int | None = None,
    missed: str = "one",
    headers: Sequence[Header] = (),
    replaces: str | None = None,
) -> None:
    """Publish a message that repeats. Every third such message goes to another topic."""
    output = application.other if number % 3 == 0 else application.output
    key, value = b"k%d" % (number % 5), b"v%d" % number
    own: list[Header] = [*headers, ("trace", b"%d" % number), ("deliver-to", output.encode())]
    rule: list[Header] = [("delayline-repeat", b"every %dms" % every_ms), ("delayline-repeat-missed", missed.encode())]
    if most is not None:
        rule.append(("delayline-repeat-count", b"%d" % most))

    def expected(identity: str, published_ms: int) -> Repeated:
        # Headers of Delayline do not count.
        left = tuple(each for each in own if not each[0].startswith("delayline-"))
        return Repeated(identity, published_ms + every_ms, key, value, left, output, every_ms, most=most, missed=missed)

    ledger.repeat(
        application.input, value, rule, expected, headers=own, key=key, partition=number % 2, replaces=replaces
    )


def came(ledger: Ledger, identity: str) -> int:
    return sum(record.id == identity for record in list(ledger.got))


def all_came(ledger: Ledger, times: int) -> bool:
    return all(came(ledger, each) >= times for each in list(ledger.repeated))


def answers(ledger: Ledger) -> dict[str, dict[str, object]]:
    return {each.id: json.loads(each.value or b"") for each in list(ledger.answers)}


def settle(ledger: Ledger, application: Application) -> None:
    """Wait until the job delivers, by batches as well as by forwarders."""
    ledger.publish(application.input, b"v", [("delayline-name", b"first")], output=application.output)
    ledger.flush()
    assert_eventually(lambda: bool(ledger.got), 60, "a delivery")


@pytest.mark.thorough
@pytest.mark.takes(90)
def test_occurrences_come_in_turn_until_they_end(application: Application, make_service: MakeService) -> None:
    service, ledger = make_service(*_SETTINGS, "clock.horizon=20s")
    service.start()
    settle(ledger, application)
    for number in range(20):
        repeat(ledger, application, number)
    for number in range(4):
        repeat(ledger, application, number, every_ms=1_000, most=3)
    ledger.flush()
    forever = [each for each, message in ledger.repeated.items() if message.most is None]
    assert_eventually(lambda: all(came(ledger, each) >= 6 for each in forever), 60, "occurrences")
    assert_eventually(lambda: all_came(ledger, 3), 30, "the last occurrences")
    ledger.deliver_now(forever[0])
    ledger.flush()
    assert_eventually(lambda: len(answers(ledger)) == 1, 30, "an answer")
    (kept,) = answers(ledger).values()
    assert (kept["result"], kept["reason"]) == ("kept", "repeats")
    for identity in forever:
        ledger.cancel(identity)
    ledger.wait_for_all(60)
    results = [str(content["result"]) for content in answers(ledger).values()]
    assert sorted(results) == ["cancelled"] * len(forever) + ["kept"]
    time.sleep(22)
    ledger.verify(least_checked=0)
    counts = {each: came(ledger, each) for each in ledger.repeated}
    assert {counts[each] for each in ledger.repeated if each not in forever} == {3}
    assert service.stop() == 0, service.log[-3000:]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def publish_each_kind(ledger: Ledger, application: Application, every_ms: int = 4_000) -> None:
    for number, missed in enumerate(["one", "all", "none"] * 4):
        repeat(ledger, application, number, every_ms=every_ms + 100 * number, missed=missed)
        repeat(ledger, application, number, every_ms=every_ms, most=4, missed="all")
    ledger.flush()


@pytest.mark.thorough
@pytest.mark.takes(90)
def test_missed_occurrences_come_once_or_each_or_not_at_all(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service(*_SETTINGS, "clock.horizon=15s")
    service.start()
    settle(ledger, application)
    for number, missed in enumerate(("one", "all", "none")):
        repeat(ledger, application, number, missed=missed)
    ledger.flush()
    assert_eventually(lambda: all_came(ledger, 3), 60, "occurrences")
    begun_ms = now_ms()
    service.kill()
    time.sleep(30)
    service.start()
    count = {each: came(ledger, each) for each in list(ledger.repeated)}
    assert_eventually(lambda: all(came(ledger, each) > count[each] + 8 for each in count), 60, "occurrences")
    ledger.outages.append((begun_ms - 5_000, now_ms()))
    for identity in list(ledger.repeated):
        ledger.cancel(identity)
    ledger.wait_for_all(60)
    time.sleep(16)
    ledger.verify(least_checked=0)
    for identity, message in ledger.repeated.items():
        dues = [int(each.last("delayline-deliver-at") or 0) for each in list(ledger.got) if each.id == identity]
        longest_ms = max(second - first for first, second in pairwise(dues))
        assert longest_ms == _EVERY_MS if message.missed == "all" else longest_ms > 2 * _EVERY_MS, (
            message.missed,
            dues,
        )
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.takes(150)
@pytest.mark.parametrize(
    ("then", "points"),
    [
        ("run", ()),
        *(pytest.param(then, _POINTS, marks=pytest.mark.thorough) for then in ("run", "rebuild", "rescale")),
    ],
)
def test_each_occurrence_comes_once_across_kills(
    application: Application, make_service: MakeService, then: str, points: tuple[str, ...]
) -> None:
    """Kills strike before and after occurrences are staged, and before and after the following occurrences are stored.

    The job starts with and without the checkpoint, and with another number of shards.
    """
    service, ledger = make_service(*_SETTINGS, "clock.horizon=20s")
    ledger.is_rebuilt = then == "rebuild"
    service.start()
    settle(ledger, application)
    publish_each_kind(ledger, application)
    assert_eventually(lambda: all_came(ledger, 1), 60, "occurrences")
    begun_ms = now_ms()
    for shards, point in enumerate(points, 3):
        service.kill()
        # Read with the occurrences that are due then.
        publish_each_kind(ledger, application, 2_000)
        service.start(f"{point}=kill", wait=False)
        assert service.wait(120) == -signal.SIGKILL, service.log[-3000:]
        if then == "rebuild":
            shutil.rmtree(application.checkpoint)
            assert service.command("rebuild") == 0, service.log[-3000:]
        elif then == "rescale":
            assert service.command("rescale", "--shards", str(shards)) == 0, service.log[-3000:]
            service.overrides.append(f"bucket.shards={shards}")
        service.start()
        count = {each: came(ledger, each) for each in list(ledger.repeated)}
        forever = [each for each, message in list(ledger.repeated.items()) if message.most is None]
        assert_eventually(lambda: all(came(ledger, each) > count[each] for each in forever), 90, "occurrences")  # noqa: B023
        ledger.outages.append((begun_ms - 5_000, now_ms()))
    assert_eventually(lambda: all_came(ledger, 4), 60, "occurrences")
    for identity in list(ledger.repeated):
        ledger.cancel(identity)
    ledger.wait_for_all(90)
    time.sleep(22)
    ledger.verify(least_checked=0)
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
@pytest.mark.takes(90)
def test_message_under_the_same_name_changes_the_schedule(application: Application, make_service: MakeService) -> None:
    service, ledger = make_service(*_SETTINGS, "clock.horizon=15s")
    service.start()
    settle(ledger, application)
    name: Header = ("delayline-name", b"poll")
    repeat(ledger, application, 0, headers=[name])
    ledger.flush()
    (first,) = ledger.repeated
    assert_eventually(lambda: came(ledger, first) >= 3, 60, "occurrences")
    repeat(ledger, application, 2, every_ms=3_000, headers=[name])
    ledger.flush()
    (second,) = ledger.repeated.keys() - {first}
    assert_eventually(lambda: came(ledger, second) >= 2, 60, "occurrences of the new schedule")
    # Occurrences that were staged when the second one was read have come.
    time.sleep(16)
    count = came(ledger, first)
    ledger.cancel_by_name(application.input, "poll", [("delayline-cancel-name", b"poll")], partition=0)
    ledger.flush()
    assert_eventually(lambda: len(list(ledger.answers)) == 1, 60, "the answer")
    (content,) = answers(ledger).values()
    assert (content["result"], content["id"]) == ("cancelled", second)
    time.sleep(16)
    assert came(ledger, first) == count
    assert content["occurrence"] == came(ledger, second)
    numbers = [record.last("delayline-occurrence") for record in list(ledger.got) if record.id == second]
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    ledger.closed = True
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
@pytest.mark.takes(120)
@pytest.mark.parametrize("remedy", ["restore", "repair"])
def test_schedules_go_on_after_the_table_has_lost_them(
    application: Application, make_service: MakeService, remedy: str
) -> None:
    """Those that a copy of it has, and those with their record in the input topic. No instant comes twice."""
    service, ledger = make_service(*_SETTINGS, "clock.horizon=15s")
    storage, copy = application.folder / "storage", application.folder / "copy"
    service.start()
    settle(ledger, application)
    publish_each_kind(ledger, application, 2_000)
    assert_eventually(lambda: all_came(ledger, 1), 60, "occurrences")
    shutil.copytree(storage / "buckets", copy)
    repeat(ledger, application, 1)
    ledger.flush()
    forever = [each for each, message in ledger.repeated.items() if message.most is None]
    assert_eventually(lambda: all(came(ledger, each) >= 12 for each in forever), 60, "occurrences")
    service.kill()
    if remedy == "restore":
        shutil.rmtree(storage / "buckets")
        shutil.copytree(copy, storage / "buckets")
    else:
        for file in (storage / "buckets").glob("part=chunks-*/*.parquet"):
            file.unlink()
        report = str(application.folder / "report.json")
        assert service.command("repair", "--skip", "--report", report) == 0, service.log[-3000:]
    assert service.command("rebuild", "--discard-checkpoint") == 0, service.log[-3000:]
    is_older = "the table of sealed buckets is older than the ready log" in service.log
    assert is_older == (remedy == "restore")
    service.start()
    count = {each: came(ledger, each) for each in forever}
    assert_eventually(lambda: all(came(ledger, each) >= count[each] + 3 for each in forever), 60, "occurrences")
    for identity, message in ledger.repeated.items():
        own = [record for record in list(ledger.got) if record.id == identity]
        for header in ("delayline-occurrence", "delayline-deliver-at"):
            values = [int(record.last(header) or 0) for record in own]
            assert values == sorted(set(values)), (header, values)
        assert message.most is None or len(own) <= message.most
    ledger.closed = True
    assert service.stop() == 0, service.log[-3000:]
