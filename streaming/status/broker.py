"""The part of the status that comes from the broker: input lag, lease, what is ready, processes, lanes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from conf.errors import (
    BrokerUnreachable,
    CheckpointMismatch,
    FormatMismatch,
    ReadyLogLost,
    RightMissing,
    TopicMissing,
)
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.group.groups import forward_group, release_group
from sinks.group.members import Member
from sinks.internal_topics.lease import read_lease
from sinks.internal_topics.lease_record import Lease
from state.checkpoint.origin import Offsets
from streaming.status.input_lag import PartitionLag, input_lag
from streaming.status.lanes import LaneStatus, lane_statuses
from streaming.status.processes import running_members
from streaming.status.ready import ReadyShard, ready_shards


@dataclass(frozen=True)
class BrokerAnswer:
    """The part of the status that comes from the broker.

    - `lag`: the input lag; None if the broker does not answer, or a topic is missing. `problem` then has the reason.
    - `ready`: messages that are staged and not released, by shard; `members`: the release processes. None as for `lag`.
    - `lanes`: how far forwarders are in each lane; none if batches do all of the work. `forwarders`: those that run.
      None as for `lag`.
    - `holder`: the holder of the lease. A process that was killed stays the holder until another claims the lease.
      None if nobody holds the lease, if the broker does not answer, or if the lease topic holds a foreign record;
      in the last case `lease_problem` has the reason.
    """

    lag: list[PartitionLag] | None
    holder: Lease | None = None
    problem: str = ""
    lease_problem: str = ""
    ready: list[ReadyShard] | None = None
    members: list[Member] | None = None
    ready_problem: str = ""
    lanes: list[LaneStatus] | None = None
    forwarders: list[Member] | None = None
    forward_problem: str = ""


def ask_broker(settings: Settings, read: Offsets, last_batch: int) -> BrokerAnswer:
    """Ask the broker for the input lag and the lease, and what is ready. Errors become part of the answer.

    The lag counts from the offsets `read` on, and batches up to `last_batch` have made ready what counts.

    Waiting messages are counted without Kafka, and an operator needs these counts when Kafka is down.
    """
    holder, lease_problem = None, ""
    try:
        try:
            holder = _holder(settings)
        except CheckpointMismatch as no_lease:
            lease_problem = str(no_lease)
        lag = input_lag(settings, read)
        answer = BrokerAnswer(lag, holder, lease_problem=lease_problem)
    except (BrokerUnreachable, TopicMissing, RightMissing) as problem:
        return BrokerAnswer(None, holder, str(problem), lease_problem)
    try:
        releases = running_members(settings, release_group(settings))
        answer = replace(answer, ready=ready_shards(settings, last_batch), members=releases)
    except (BrokerUnreachable, TopicMissing, RightMissing, ReadyLogLost, CheckpointMismatch) as problem:
        answer = replace(answer, ready_problem=str(problem))
    try:
        lanes = lane_statuses(settings, lag)
        return replace(answer, lanes=lanes, forwarders=running_members(settings, forward_group(settings)))
    except (BrokerUnreachable, TopicMissing, RightMissing, CheckpointMismatch, FormatMismatch) as problem:
        return replace(answer, forward_problem=str(problem))


def _holder(settings: Settings) -> Lease | None:
    try:
        last = read_lease(librdkafka_options(settings.kafka), settings.lease_topic)
    except TopicMissing:
        return None
    return None if last is None or last.released else last
