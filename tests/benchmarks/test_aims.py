"""The aims of each benchmark, on made-up figures: good figures meet all, a bad or missing figure breaks its aim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import (
    burst,
    cadence,
    cancels,
    commits,
    endurance,
    forward,
    hot,
    idle,
    ids,
    index,
    ingest,
    lateness,
    names,
    outage,
    overload,
    plain,
    planning,
    schedules,
    sealed,
    shards,
    spread,
    sustained,
    topics,
    watched,
    window,
)
from benchmarks.aims import FAULTS, Figures
from benchmarks.outcome import Aim

CLEAN: dict[str, float] = dict.fromkeys(FAULTS, 0)
GROWING = ("table_mb", "files", "memory_mb", "batch_steps_s")
# (case, figure), and a value that breaks an aim.
Breach = tuple[str, str, float]


@dataclass(frozen=True)
class Case:
    """A benchmark's aims, figures that meet them all, and for each aim a figure with a value that breaks it."""

    aims_of: Callable[[Figures], list[Aim]]
    good: dict[str, dict[str, float]]
    breaches: dict[str, Breach]


def faults(case: str, names: tuple[str, ...] = FAULTS) -> dict[str, Breach]:
    return {f"{name}, {case}": (case, name, 1) for name in names}


def ordered_faults(case: str) -> dict[str, Breach]:
    return {f"share held to their order, {case}": (case, "held_to_order", 0.49), **faults(case)}


FIRST, SECOND, KILLED, MANY = lateness.FIRST, lateness.SECOND, lateness.KILLED, lateness.MANY_WAITING
ORDERED: dict[str, float] = {"held_to_order": 0.5, **CLEAN}
PUNCTUAL: dict[str, float] = {"p50_ms": 15.0, "p99_ms": 40.0, "p99_9_ms": 80.0, **ORDERED}
ANSWERED = {"asked": 1_000, "answered": 1_000, "cancelled": 1_000, "last_answer_s": 10.0}
SPREAD_GOOD = {"came_out": 0, "dead_letters": 0, "lost": 0}
WORST = "memory where the index takes most, of TimeBucket's there"


def index_figures() -> dict[str, dict[str, float]]:
    """Return megabytes that just meet the aims for 10 million ids; (1, 10) of the sparse load is the worst."""
    figures: dict[str, dict[str, float]] = {load: {} for load in index.LOADS}
    for rate, bits, megabytes in index.SETTINGS:
        worst_mb = {index.CONSECUTIVE: min(megabytes, 1.63), index.SPARSE: 30.0 + (bits == 10 and rate == 1)}
        for load in index.LOADS:
            figures[load][f"({rate}, {bits}) {index.INDEX}, memory_mb"] = worst_mb.get(load, 10.0)
            figures[load][f"({rate}, {bits}) {index.TIME_BUCKET}, memory_mb"] = 31.0
    return figures


HELD = ("memory_mb", "handles", "threads", "code_mb", "heap_mb")
SEALED = (sealed.CASE, sealed.MERGING)
WINDOWS = (window.SEALED, window.MERGED)
CASES = {
    "lateness": Case(
        lateness.aims_of,
        {
            FIRST: PUNCTUAL,
            SECOND: {"cpu_job": 0.5, **PUNCTUAL},
            KILLED: {"p99_ms": 60.0},
            MANY: PUNCTUAL,
            lateness.ALL: ORDERED,
        },
        {
            f"{what}, {case}": (case, name, worst)
            for case in (FIRST, SECOND, MANY)
            for what, name, worst in (("p50", "p50_ms", 15.1), ("p99", "p99_ms", 40.1), ("p99.9", "p99_9_ms", 80.1))
        }
        | {f"p99, {KILLED}": (KILLED, "p99_ms", 60.1)}
        | {f"cores of all processes of the job, {SECOND}": (SECOND, "cpu_job", 0.51)}
        | ordered_faults(lateness.ALL)
        | ordered_faults(MANY),
    ),
    "endurance": Case(
        endurance.aims_of,
        {endurance.CASE: {f"{name}_{third}": 110.0 for name in HELD for third in ("before", "last")} | ORDERED},
        {
            f"{name} of the last third, of that of the third before": (endurance.CASE, f"{name}_last", 121.1)
            for name in HELD
        }
        | ordered_faults(endurance.CASE),
    ),
    "cadence": Case(
        cadence.aims_of,
        {
            case: {"cpu_job": 0.5, "ingested_per_s": 90.0, "answer_p99_ms": 5_000.0, **ORDERED}
            for case in cadence.TRIGGERS
        }
        | {"10 s": {"ingested_per_s": 100.0, **ORDERED}},
        {
            f"cores of all processes of the job, {cadence.DEFAULT}": (cadence.DEFAULT, "cpu_job", 0.51),
            f"messages/s taken in, of the best trigger, {cadence.DEFAULT}": (cadence.DEFAULT, "ingested_per_s", 89),
            f"answers to cancels, p99, {cadence.DEFAULT}": (cadence.DEFAULT, "answer_p99_ms", 5_001),
            **{what: breach for case in cadence.TRIGGERS for what, breach in ordered_faults(case).items()},
        },
    ),
    "ids": Case(
        ids.aims_of,
        {ids.BUILD: {"bytes_each": 13, "memory_mb": 200}, ids.BY_NAME: {"bytes_each": 60, "memory_mb": 200}},
        {
            "bytes on disk for a sealed message": (ids.BUILD, "bytes_each", 13.1),
            "memory that the copy of sealed ids takes": (ids.BUILD, "memory_mb", 201),
            "bytes on disk for a name": (ids.BY_NAME, "bytes_each", 61),
            "memory that names take": (ids.BY_NAME, "memory_mb", 201),
        },
    ),
    "cancels": Case(
        cancels.aims_of,
        {
            cancels.CALM: {"p99_ms": 20.0, "mb_job": 100.0, **ORDERED},
            cancels.ASKED: {"p99_ms": 26.0, "mb_job": 130.0, **ORDERED, **ANSWERED},
        },
        {
            "answers to requests": (cancels.ASKED, "answered", 999),
            "cancelled of those": (cancels.ASKED, "cancelled", 999),
            "from the last request to the last answer": (cancels.ASKED, "last_answer_s", 10.1),
            "lateness p99, to that without requests": (cancels.ASKED, "p99_ms", 26.1),
            "memory, to that without requests": (cancels.ASKED, "mb_job", 131),
            **ordered_faults(cancels.CALM),
            **ordered_faults(cancels.ASKED),
        },
    ),
    "names": Case(
        names.aims_of,
        {
            names.PLAIN: {"p99_ms": 20.0, "mb_job": 100.0, "batch_steps_p50_s": 0.5, **ORDERED},
            names.NAMED: {"p99_ms": 26.0, "mb_job": 120.0, "batch_steps_p50_s": 1.0, **ORDERED},
        },
        {
            "lateness p99, of that without names": (names.NAMED, "p99_ms", 26.1),
            "memory, of that without names": (names.NAMED, "mb_job", 121),
            "a batch's steps p50, of those without names": (names.NAMED, "batch_steps_p50_s", 1.51),
            **ordered_faults(names.PLAIN),
            **ordered_faults(names.NAMED),
        },
    ),
    "sustained": Case(
        sustained.aims_of,
        {
            sustained.CASE: {
                "backlog_grown_s": 2.0,
                "buckets_most": 60.0,
                "buckets_allowed": 60.5,
                "publisher_held_back": 0.01,
            }
        },
        {
            "messages a batch leaves unread, grown by": (sustained.CASE, "backlog_grown_s", 2.1),
            "buckets at the most": (sustained.CASE, "buckets_most", 61.0),
            "publisher held back": (sustained.CASE, "publisher_held_back", 0.02),
        },
    ),
    "commits": Case(
        commits.aims_of,
        {commits.CLEANED: {"first_p50_ms": 100.0, "last_p50_ms": 120.0}},
        {"p50 of a seal after a week, of that at its beginning": (commits.CLEANED, "last_p50_ms", 120.1)},
    ),
    "planning": Case(
        planning.aims_of,
        {planning.NEAR: {"cpu": 0.02}, planning.MINUTE: {"cpu": 0.04}, planning.FAR: {"cpu": 0.04}},
        {
            f"CPU, {planning.MINUTE}, of that {planning.NEAR}": (planning.MINUTE, "cpu", 0.041),
            f"CPU, {planning.FAR}, of that {planning.NEAR}": (planning.FAR, "cpu", 0.041),
        },
    ),
    "window": Case(
        window.aims_of,
        {case: {"bytes_read": 300, "own_bytes": 100, "missing": 0} for case in WINDOWS},
        {
            **{f"bytes read, of those of the messages loaded, {case}": (case, "bytes_read", 301) for case in WINDOWS},
            **{f"messages missing, {case}": (case, "missing", 1) for case in WINDOWS},
        },
    ),
    "shards": Case(
        shards.aims_of,
        {
            shards.FEW: dict.fromkeys(plain.FAULTS_OF_PLAIN, 0),
            shards.MANY: {
                "batch_steps_p50_s": 1.0,
                "daemons": 1,
                "opened": 0.02,
                "least": 0.25,
                **dict.fromkeys(plain.FAULTS_OF_PLAIN, 0),
            },
        },
        {
            "steps of a batch, p50 in s": (shards.MANY, "batch_steps_p50_s", 1.1),
            "daemons of Python workers on a worker": (shards.MANY, "daemons", 2),
            "hand-overs that opened a writer, second half": (shards.MANY, "opened", 0.03),
            "connections to the broker, of the worker with fewer": (shards.MANY, "least", 0.24),
        }
        | faults(shards.FEW, plain.FAULTS_OF_PLAIN)
        | faults(shards.MANY, plain.FAULTS_OF_PLAIN),
    ),
    "sealed": Case(
        sealed.aims_of,
        {
            case: {"published": 100, "sealed": 30, "p99_ms": p99_ms, "backlog_grown_s": 1.0, **ORDERED}
            for case, p99_ms in ((sealed.CASE, 33.0), (sealed.MERGING, 49.5))
        },
        {
            **{f"share of the messages that were sealed, {case}": (case, "sealed", 29) for case in SEALED},
            **{f"p99, {case}": (case, "p99_ms", 50.1) for case in SEALED},
            **{f"backlog that a batch leaves, grown by, {case}": (case, "backlog_grown_s", 1.1) for case in SEALED},
            "p99 with continual merges, of that without": (sealed.MERGING, "p99_ms", 49.6),
        }
        | ordered_faults(sealed.CASE)
        | ordered_faults(sealed.MERGING),
    ),
    "schedules": Case(
        schedules.aims_of,
        {
            schedules.PLAIN: {"p50_ms": 10.0, "p99_ms": 30.0, **ORDERED},
            schedules.REPEATING: {"p50_ms": 13.0, "p99_ms": 39.0, **ORDERED}
            | {f"{name}_first": 10.0 for name in GROWING}
            | {f"{name}_last": 11.0 for name in GROWING},
            schedules.PLAIN_CANCELS: {"answer_p50_ms": 1000},
            schedules.CANCELS: {"answer_p50_ms": 1300, "asked": 4000, "cancelled": 4000, "wrong": 0},
        },
        {
            "lateness p50, of that of plain messages": (schedules.REPEATING, "p50_ms", 13.1),
            "lateness p99, of that of plain messages": (schedules.REPEATING, "p99_ms", 39.1),
            "cancelled of the asked schedules": (schedules.CANCELS, "cancelled", 3999),
            "time to the answer p50, of that about plain messages": (schedules.CANCELS, "answer_p50_ms", 1301),
            "wrong occurrences and answers of cancelled schedules": (schedules.CANCELS, "wrong", 1),
        }
        | {
            f"{name} of the last third, of that of the first": (schedules.REPEATING, f"{name}_last", 11.1)
            for name in GROWING
        }
        | ordered_faults(schedules.PLAIN)
        | ordered_faults(schedules.REPEATING),
    ),
    "ingest": Case(
        ingest.aims_of,
        {ingest.JOB: {"messages_per_s": 150_000, "came_out": 0, "dead_letters": 0}},
        {
            "messages/s sealed or held": (ingest.JOB, "messages_per_s", 149_999),
            "came out": (ingest.JOB, "came_out", 1),
            "dead letters": (ingest.JOB, "dead_letters", 1),
        },
    ),
    "topics": Case(
        topics.aims_of,
        {
            topics.ONE: ORDERED,
            topics.MANY: {"p99_ms": 35.0, "p99_ms_to_one": 1.3, "cpu_job_to_one": 1.3, **ORDERED},
            topics.ALL: ORDERED,
        },
        {
            "p99, 1,000 output topics": (topics.MANY, "p99_ms", 35.1),
            "p99_ms to that with one topic": (topics.MANY, "p99_ms_to_one", 1.31),
            "cpu_job to that with one topic": (topics.MANY, "cpu_job_to_one", 1.31),
        }
        | ordered_faults(topics.ONE)
        | ordered_faults(topics.MANY)
        | ordered_faults(topics.ALL),
    ),
    "plain": Case(
        plain.aims_of,
        {case: {"p50_ms": 50.0, "p99_ms": 150.0, **dict.fromkeys(plain.FAULTS_OF_PLAIN, 0)} for case in plain.RATES},
        {
            what: breach
            for case in plain.RATES
            for what, breach in (
                (f"p50, {case}", (case, "p50_ms", 50.1)),
                (f"p99, {case}", (case, "p99_ms", 150.1)),
                *faults(case, plain.FAULTS_OF_PLAIN).items(),
            )
        },
    ),
    "forward": Case(
        forward.aims_of,
        {forward.SUSTAINED: {"messages_per_s": 50_000}, **dict.fromkeys(forward.RATES, ORDERED)},
        {"messages/s that one forwarder takes": (forward.SUSTAINED, "messages_per_s", 49_999)}
        | {"share held to their order, 1,000 messages/s": ("1,000 messages/s", "held_to_order", 0.49)}
        | {what: breach for case in forward.RATES for what, breach in faults(case).items()},
    ),
    "outage": Case(
        outage.aims_of,
        {
            outage.TREE: {"all_partitions_s": 3.0},
            outage.RELEASE: {"all_partitions_s": 2.0},
            outage.ONE_OF_TWO: {"all_partitions_s": 10.0},
            outage.ALL: ORDERED,
            outage.ALL_OF_TWO: ORDERED,
        },
        {
            f"{case}: every partition delivers again": (case, "all_partitions_s", late_s)
            for case, late_s in ((outage.TREE, 3.1), (outage.RELEASE, 2.1), (outage.ONE_OF_TWO, 10.1))
        }
        | ordered_faults(outage.ALL)
        | ordered_faults(outage.ALL_OF_TWO),
    ),
    "outage, alternatives": Case(
        outage.alternatives_of,
        {outage.DRIVER: {"p99_ms": 35.0}, outage.CALM: {"p99_ms": 24.0}},
        {
            "p99 of what was handed over, driver killed": (outage.DRIVER, "p99_ms", 35.1),
            "p99 of what was handed over, driver killed, of that in the calm": (outage.CALM, "p99_ms", 23.0),
        },
    ),
    "burst": Case(
        burst.aims_of,
        {
            burst.JOB: {"messages_per_s": 160_000, **CLEAN},
            burst.MANY: {"messages_per_s": 1_000_000, **CLEAN},
            burst.BARE: {"messages_per_s": 290_000},
        },
        {
            "messages/s delivered": (burst.JOB, "messages_per_s", 149_999),
            f"messages/s, of as many bare producers' as shards, {burst.JOB}": (burst.BARE, "messages_per_s", 320_001),
            f"messages/s, of as many bare producers' as shards, {burst.MANY}": (burst.MANY, "messages_per_s", 144_999),
        }
        | faults(burst.JOB)
        | faults(burst.MANY),
    ),
    "hot": Case(
        hot.aims_of,
        {case: {"messages_per_s": 0.95 * rate, "behind_most_s": 1.0, **CLEAN} for case, rate in hot.CASES.items()},
        {f"messages/s delivered, {case}": (case, "messages_per_s", 0.94 * rate) for case, rate in hot.CASES.items()}
        | {f"behind what is due at the most, {case}": (case, "behind_most_s", 1.01) for case in hot.CASES}
        | {what: breach for case in hot.CASES for what, breach in faults(case).items()},
    ),
    "idle": Case(
        idle.aims_of,
        {idle.DEFAULT: {"cpu_job": 0.1}, idle.OFTEN: {"p50_s": 0.45}},
        {
            "cores of all processes, default settings": (idle.DEFAULT, "cpu_job", 0.101),
            "p50 from one batch's commit to the next, as often as it can": (idle.OFTEN, "p50_s", 0.451),
        },
    ),
    "watched": Case(
        watched.aims_of,
        {watched.CASE: {"share": 0.02}},
        {"CPU of page and metrics, of the job's": (watched.CASE, "share", 0.0201)},
    ),
    "overload": Case(
        overload.aims_of,
        {
            overload.CALM: {"p99_ms": 100.0, "mb_job": 1000.0},
            overload.FLOOD: {"p99_ms": 200.0, "max_ms": 4000.0, "mb_job": 1300.0, "batch_steps_p99_s": 1.0}
            | {"published": 1000, "lag": 800}
            | CLEAN,
            overload.ALL: dict.fromkeys(overload.FAULTS_OF_ALL, 0),
        },
        {
            "p99 of accepted messages, to that in the calm": (overload.FLOOD, "p99_ms", 200.1),
            "largest lateness of those, to the p99 of a batch": (overload.FLOOD, "max_ms", 4000.1),
            "memory, to that in the calm": (overload.FLOOD, "mb_job", 1300.1),
            "published to taken in": (overload.FLOOD, "lag", 799),
        }
        | faults(overload.FLOOD)
        | faults(overload.ALL, overload.FAULTS_OF_ALL),
    ),
    "spread": Case(
        spread.aims_of,
        {
            spread.CLOSE: {"messages_per_s": 100, "segments": 10, "files": 5, **SPREAD_GOOD},
            spread.YEAR: {"messages_per_s": 50, "segments": 40, "files": 20, **SPREAD_GOOD}
            | {"metadata_bytes_per_message": 100.0, "driver_bytes_per_message": 10.0},
        },
        {
            "messages/s, of those close together": (spread.YEAR, "messages_per_s", 49),
            "segments, of those close together": (spread.YEAR, "segments", 41),
            "files, of those close together": (spread.YEAR, "files", 21),
            "metadata of a message on disk": (spread.YEAR, "metadata_bytes_per_message", 100.1),
            "metadata of a message in memory": (spread.YEAR, "driver_bytes_per_message", 10.1),
        }
        | {
            f"{what}, {case}": (case, name, 1)
            for case in (spread.CLOSE, spread.YEAR)
            for what, name in (("came out", "came_out"), ("dead letters", "dead_letters"), ("not found", "lost"))
        },
    ),
    "index": Case(
        lambda figures: index.aims_of(figures, index.MESSAGES),
        index_figures(),
        {
            f"({rate}, {bits}): memory": (index.CONSECUTIVE, f"({rate}, {bits}) index, memory_mb", megabytes + 0.01)
            for rate, bits, megabytes in index.SETTINGS
        }
        | {
            "(8, 15): memory of a message": (index.CONSECUTIVE, "(8, 15) index, memory_mb", 1.64),
            WORST: (index.SPARSE, "(1, 10) index, memory_mb", 31.1),
        },
    ),
}


def breaches_of(name: str) -> Iterator[Any]:
    for what, breach in CASES[name].breaches.items():
        yield pytest.param(CASES[name], what, breach, id=f"{name}: {what}")


ALL_BREACHES = [each for name in CASES for each in breaches_of(name)]


def not_met(case: Case, figures: dict[str, dict[str, float]]) -> dict[str, Aim]:
    return {aim.what: aim for aim in case.aims_of(figures) if not aim.met}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_figures_at_their_targets_meet_every_aim(case: Case) -> None:
    assert case.aims_of(case.good)
    assert not_met(case, case.good) == {}


@pytest.mark.parametrize(("case", "what", "breach"), ALL_BREACHES)
def test_a_figure_beyond_its_target_breaks_its_aim(case: Case, what: str, breach: Breach) -> None:
    figures = deepcopy(case.good)
    run_name, name, value = breach
    figures[run_name][name] = value
    broken = not_met(case, figures)
    assert what in broken
    assert broken[what].value is not None


@pytest.mark.parametrize(("case", "what", "breach"), ALL_BREACHES)
def test_a_missing_figure_breaks_its_aim(case: Case, what: str, breach: Breach) -> None:
    figures = deepcopy(case.good)
    run_name, name, _ = breach
    del figures[run_name][name]
    assert not_met(case, figures)[what].value is None


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_without_any_figure_no_aim_is_met(case: Case) -> None:
    assert not any(aim.met for aim in case.aims_of({}))


@pytest.mark.parametrize("name", CASES)
def test_every_aim_is_broken_by_one_of_the_breaches(name: str) -> None:
    case = CASES[name]
    assert {aim.what for aim in case.aims_of(case.good)} == case.breaches.keys()


@pytest.mark.parametrize(("p99_ms", "calm_ms", "met"), [(35.0, 5.0, [True, False]), (60.0, 40.0, [False, True])])
def test_without_a_driver_messages_are_punctual_or_as_late_as_in_the_calm(
    p99_ms: float, calm_ms: float, met: list[bool]
) -> None:
    figures = {outage.DRIVER: {"p99_ms": p99_ms}, outage.CALM: {"p99_ms": calm_ms}}
    assert [aim.met for aim in outage.alternatives_of(figures)] == met


def test_no_benchmark_is_left_out() -> None:
    assert {name.partition(",")[0] for name in CASES} == command.BENCHMARKS.keys()


def test_the_writers_that_hand_overs_opened_count_in_the_second_half_of_the_batches() -> None:
    log = """
    opened writers for shards [0, 1, 2, 3] of the 4 that staged messages
    batch 1: staged messages due before 10, sealed 0 messages in 0 segments, took 0.10 s
    batch 2: staged messages due before 20, sealed 0 messages in 0 segments, took 0.10 s
    opened writers for shards [2] of the 4 that staged messages
    batch 3: staged messages due before 30, sealed 0 messages in 0 segments, took 0.10 s
    batch 4: staged messages due before 40, sealed 0 messages in 0 segments, took 0.10 s
    """
    assert shards.opened_share(log, 4) == 1 / 8
    assert shards.opened_share("", 4) is None


def test_the_sustained_rate_is_the_last_one_below_the_first_that_is_not_kept_up_with() -> None:
    good = {"forwarded": 0.99, "p99_ms": 50.0}
    cases = list(forward.RATES)
    figures = dict.fromkeys(cases, good)
    assert forward.sustained(figures) == 50_000
    assert forward.sustained(figures | {cases[2]: good | {"p99_ms": 50.1}}) == 10_000
    assert forward.sustained(figures | {cases[1]: good | {"forwarded": 0.98}}) == 1_000
    assert forward.sustained({}) == 0
