"""The cases of benchmarks that take in or deliver as much as they can."""

from __future__ import annotations

from benchmarks import burst, forward, hot, ingest, overload, sealed, spread, sustained
from tests.benchmarks.aim_case import CLEAN, ORDERED, Case, faults, ordered_faults

SPREAD_GOOD = {"came_out": 0, "dead_letters": 0, "lost": 0}
SEALED = (sealed.CASE, sealed.MERGING)
RATE_CASES = {
    "ingest": Case(
        ingest.aims_of,
        {ingest.JOB: {"messages_per_s": 150_000, "came_out": 0, "dead_letters": 0}},
        {
            "messages/s sealed or held": (ingest.JOB, "messages_per_s", 149_999),
            "came out": (ingest.JOB, "came_out", 1),
            "dead letters": (ingest.JOB, "dead_letters", 1),
        },
    ),
    "forward": Case(
        forward.aims_of,
        {forward.SUSTAINED: {"messages_per_s": 50_000}, **dict.fromkeys(forward.RATES, ORDERED)},
        {"messages/s that one forwarder takes": (forward.SUSTAINED, "messages_per_s", 49_999)}
        | {"share held to their order, 1,000 messages/s": ("1,000 messages/s", "held_to_order", 0.49)}
        | {what: breach for case in forward.RATES for what, breach in faults(case).items()},
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
}
