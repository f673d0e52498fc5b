"""The schedules of a campaign: the published records are accepted, and each kind of record occurs."""

from __future__ import annotations

from benchmarks.chaos.schedule_plan import SchedulePlan
from conf.load import load_settings
from sources.intake.repeats import parse_schedule
from state.repeats.schedule import REPEAT_HEADERS

_NOW_MS, _COUNT = 1_798_761_600_000, 2_400


def planned(seed: int = 7) -> tuple[SchedulePlan, dict[int, dict[str, bytes]]]:
    """Return the plan of ten minutes, and the headers of each record by its number."""
    plan = SchedulePlan("in", "out", seed, 0)
    return plan, {number: dict(plan.record(number, _NOW_MS + 250 * number)) for number in range(_COUNT)}


def test_same_seed_gives_the_same_records() -> None:
    assert planned()[1] == planned()[1]
    assert planned()[1] != planned(8)[1]


def test_each_kind_of_record_occurs() -> None:
    plan, headers = planned()
    kinds = [name for own in headers.values() for name in own]
    for name in ("delayline-cancel", "delayline-cancel-name", "delayline-deliver-now", "delayline-name"):
        assert kinds.count(name) > 0.05 * _COUNT, name
    repeating = [sent.repeats for sent in plan.sent.values() if sent.repeats is not None]
    for of in ("every_ms", "cron", "most", "until_ms", "name"):
        assert len(repeating) > sum(bool(getattr(message, of)) for message in repeating) > 50, of
    assert {message.missed for message in repeating} == {"one", "all", "none"}


def test_each_schedule_is_allowed_and_means_the_same_to_the_service() -> None:
    least_ms = load_settings(None, [], environ={}).policies.of_all.repeat_interval
    plan, headers = planned()
    for number, own in headers.items():
        message = plan.sent[number].repeats
        rule = {name: own[name] for name in REPEAT_HEADERS if name in own}
        assert (message is None) == (not rule)
        if message is not None:
            schedule = parse_schedule(rule)
            assert schedule.rule.shortest_ms >= least_ms
            assert (schedule.rule.interval_ms, schedule.rule.cron) == (message.every_ms, message.cron)
            ends = (message.most, message.until_ms, message.missed)
            assert (schedule.count, schedule.until_ms, schedule.missed) == ends


def test_each_schedule_is_asked_to_end_once_by_id_and_in_its_partition() -> None:
    plan, _ = planned()
    closing = plan.cancels()
    assert [number for number, _ in closing] == sorted({number for number, _ in closing})
    ended = [sent.asked for sent in plan.sent.values() if sent.asked is not None and not sent.delivers]
    assert len(ended) == len(set(ended))
    schedules = {number for number, sent in plan.sent.items() if sent.repeats is not None}
    superseded = {number for number in schedules if plan.sent[number].name}
    assert schedules - superseded <= set(ended)
    for number, sent in plan.sent.items():
        assert sent.asked is None or (sent.asked < number and sent.asked % 2 == number % 2)
        assert not sent.name or int(sent.name[1:]) % 2 == number % 2
