"""Opening the lanes for forwarders, and closing them, for the holder of the lease.

Lanes are open if the newest terms have some. Terms without lanes are written before lanes are fenced, and terms with
lanes after each lane has its first claim. So whichever step is the last before a crash, forwarders take nothing until
the lanes are opened again. Each lane is fenced once: opening goes on with the writers that closing has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from confluent_kafka import KafkaException

from conf.errors import DeliveryFailed
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.lanes.claims_search import count_lanes
from sinks.lanes.terms import failure_of, fence_terms, read_terms, write_terms
from sinks.lanes.writer import LaneTaken, LaneWriter
from state.checkpoint.origin import Offsets
from state.claims import Claim, Terms
from state.lanes import first_claims

_OPENED_AT_A_TIME = 16
# How often the first claim of a lane is written, while forwarders fence its writer.
_TRIES = 5


def close_lanes(settings: Settings, check_lease: Callable[[], None]) -> dict[int, LaneWriter]:
    """End the work of all forwarders, and return a new writer of each lane that there ever was.

    1. Fence an earlier start that may hang while it writes terms. Write terms without lanes, if the newest have some.
       From then on, no forwarder that opens a lane takes anything.
    2. Fence the owners of all lanes that there ever were, and read their newest claims.

    No claims follow the claims of these writers until the lanes are opened.

    `check_lease` raises if this process does not hold the lease any more. Raises DeliveryFailed, BrokerUnreachable,
    TopicMissing, RightMissing, CheckpointMismatch, FormatMismatch.
    """
    # 1. Write terms.
    check_lease()
    fence_terms(settings)
    terms = read_terms(settings, librdkafka_options(settings.kafka))
    if terms is not None and terms.lanes:
        write_terms(settings, replace(terms, lanes=0), check_lease)
    # 2. Fence.
    check_lease()
    return _fence_all(settings)


def open_lanes(
    settings: Settings,
    writers: Mapping[int, LaneWriter],
    terms: Terms,
    positions: Offsets,
    topic_ids: Mapping[str, str],
    check_lease: Callable[[], None],
) -> None:
    """Let forwarders begin by `terms`, in the lanes that `close_lanes` has closed and returned the `writers` of.

    1. Write the first claim of each lane: see `first_claims`.
    2. Write the terms.

    `positions` has the offset below which batches have taken all, or will, and `topic_ids` are the present ids of the
    input topics. Raises what `close_lanes` does.
    """
    newest = {lane: writer.claim for lane, writer in writers.items() if writer.claim is not None}
    # After the fencing: this process may have hung until here. Who takes the lease after this check finds the lanes
    # closed, and fences these writers; or it finds the terms of step 2.
    check_lease()
    # 1. Write claims.
    for lane, claim in first_claims(terms, positions, newest, topic_ids).items():
        _write(settings, writers[lane], claim, check_lease)
    # 2. Write terms.
    write_terms(settings, terms, check_lease)


def _write(settings: Settings, writer: LaneWriter, claim: Claim, check_lease: Callable[[], None]) -> None:
    """Write the first claim of a lane, which follows the claim that `writer` has found.

    A forwarder that looked at the terms before they were without lanes may fence the writer. It takes nothing, and is
    fenced in turn. But a job that has taken the lease meanwhile fences it too, and its forwarders write claims.
    """
    before = writer.claim
    for left in reversed(range(_TRIES)):
        try:
            writer.write(claim)
            return
        except LaneTaken as taken:
            if left == 0:
                raise DeliveryFailed(f"could not open lane {writer.lane} of the forwarders: {taken}") from taken
        except KafkaException as problem:
            raise failure_of(problem, f"could not open lane {writer.lane} of the forwarders") from problem
        writer.close()
        writer = LaneWriter(settings, librdkafka_options(settings.kafka), writer.lane)
        check_lease()
        if writer.claim == claim:
            # Its commit was sent twice, and the second one was refused.
            return
        if writer.claim != before:
            raise DeliveryFailed(f"an unknown writer has committed a claim in lane {writer.lane} of the forwarders")


def _fence_all(settings: Settings) -> dict[int, LaneWriter]:
    """Return a new writer of each lane that there ever was."""
    options = librdkafka_options(settings.kafka)

    def fence(lane: int) -> LaneWriter:
        return LaneWriter(settings, options, lane)

    try:
        lanes = count_lanes(settings, options)
        with ThreadPoolExecutor(max_workers=_OPENED_AT_A_TIME) as threads:
            return dict(enumerate(threads.map(fence, range(lanes))))
    except KafkaException as problem:
        raise failure_of(problem, "could not fence the earlier owners of lanes") from problem
