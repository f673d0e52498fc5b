"""The cases of benchmarks that measure how late messages and answers are."""

from __future__ import annotations

from benchmarks import cadence, cancels, endurance, lateness, names, outage, plain, schedules, topics
from tests.benchmarks.aim_case import ORDERED, PUNCTUAL, Case, faults, ordered_faults

GROWING = ("table_mb", "files", "memory_mb", "batch_steps_s")
FIRST, SECOND, KILLED, MANY = lateness.FIRST, lateness.SECOND, lateness.KILLED, lateness.MANY_WAITING
ANSWERED = {"asked": 1_000, "answered": 1_000, "cancelled": 1_000, "last_answer_s": 10.0}
HELD = ("memory_mb", "handles", "threads", "code_mb", "heap_mb")
PUNCTUAL_CASES = {
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
            "p99 of what was staged, driver killed": (outage.DRIVER, "p99_ms", 35.1),
            "p99 of what was staged, driver killed, of that in the calm": (outage.CALM, "p99_ms", 23.0),
        },
    ),
}
