"""Each right of docs/platform/rights.md is needed: without it the login gets an error that names right and resource."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest

from conf.errors import RightMissing
from conf.kafka.options import librdkafka_options
from conf.load import load_settings
from conf.settings import Settings
from sinks.group.groups import forward_group, release_group
from sinks.internal_topics.lease import HeldLease, read_lease
from sinks.internal_topics.position_reader import read_position
from sinks.internal_topics.progress import announce_origin
from sinks.internal_topics.recalled_writer import RecalledWriter
from sinks.lanes.deletion import delete_claims
from sinks.lanes.opening import close_lanes, open_lanes
from sinks.lanes.writer import LaneWriter
from sinks.ready_log.stage import stage
from sinks.ready_log.writer import StagingPlan, fence_writers
from sinks.release.process import ReleaseProcess
from sinks.topics.input_ends import input_bounds
from sinks.topics.partitions import partition_counts
from sinks.topics.topic_ids import input_ids
from sinks.topics.topics import check_topics, ensure_shards, ensure_topics
from sources.intake.stamp_check import unreadable_records
from sources.publisher import Publisher
from sources.subscriber import Subscriber
from state.answers import Undecided
from state.checkpoint.batch_settings import batch_settings_from
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan
from state.claims import Claim, Terms
from state.kinds import ANSWER, REQUEST
from state.recalled import KnownFrom
from streaming.forward.process import ForwardProcess
from streaming.job.requests.recalled import RecalledMessages
from streaming.status.lanes import lane_statuses
from streaming.status.processes import running_members
from streaming.status.ready import ready_shards
from tests.documented_rights import Right, documented_rights
from tests.messages import messages
from tests.strict_broker import Allow, LogInAs
from tests.thorough import some_thorough

_EPOCH = 1
_ORIGIN = CheckpointOrigin("c", 1, 2)
# The numbers of the batches that stage messages.
_BATCHES = count()
# The service continues without these rights. docs/platform/rights.md says how. By login, operation and the end of the
# topic's name.
_NOT_REQUIRED = {
    ("job", "DescribeConfigs", "input"),
    ("release", "Delete", "ready"),
    ("release", "Delete", "near"),
    ("release", "DescribeConfigs", "output"),
    ("release", "DescribeConfigs", "dead_letter"),
    ("release", "DescribeConfigs", "results"),
    ("topics", "DescribeConfigs", "input"),
}


def _stage(settings: Settings) -> None:
    """Do as the job does, with another message, dead letter and requests that are due, and a requested message."""
    check_topics(settings)
    partition_counts(settings)
    input_bounds(settings)
    with closing(HeldLease(settings, "test")) as lease:
        announce_origin(settings, _ORIGIN)
        fence_writers(settings, _ORIGIN.shards)
        plan = partial(
            StagingPlan,
            application_id=settings.application_id,
            clock_ms=0,
            progress_topic=settings.progress_topic,
            ready_topic=settings.ready_topic,
            lease_topic=settings.lease_topic,
            fencing_token=lease.fencing_token,
            transaction_timeout_ms=10_000,
            outage_limit_ms=1_000,
            tolerates_input_loss=False,
            options=librdkafka_options(settings.kafka),
        )
        letter = {"output_topic": settings.topics.dead_letter, "error_code": "bad", "error_text": "bad", "offset": 1}
        later = {"output_topic": settings.topics.output, "offset": 5, "deliver_at_ms": 2**42}
        undecided = Undecided(2**42 + 1, 0, _ORIGIN.shards, _ORIGIN.shards - 1).to_bytes()
        to_results = {"output_topic": settings.results_topic}
        requests = [
            {**to_results, "kind": REQUEST, "offset": at, "key": key, "value": undecided}
            for at, key in ((2, b"in/0/1"), (4, b"delayline-in/0/5"))
        ]
        answer = {**to_results, "kind": ANSWER, "offset": 3}
        rest: list[Mapping[str, Any]] = [{"output_topic": settings.topics.output}, letter, *requests, answer]
        # A release process recalls the first message for a request of the next batch.
        for rows in ([later], rest):
            batch = BatchSpan(_ORIGIN, next(_BATCHES))
            stage(plan(batch=batch), 0, iter([messages(rows)]))
        _take_lane(settings)
        with closing(RecalledMessages(settings, epoch=1)) as recalled:
            recalled.read(0)
        with closing(RecalledWriter(settings)) as writer:
            writer.move(KnownFrom({}, input_ids(settings), 1))
        unreadable_records(settings, {}, {settings.topics.input[0]: {"0": 1}})


def _take_lane(settings: Settings) -> None:
    """Open a single lane, take it from its owner, and delete records that are no longer needed."""
    shards, counts, ids = settings.bucket.shards, partition_counts(settings), input_ids(settings)
    known = {topic: [found] for topic, found in ids.items()}
    own = batch_settings_from(settings, counts, range(shards), _ORIGIN, input_ids=known)
    options = librdkafka_options(settings.kafka)
    # Whether forwarders have ever taken anything.
    read_position(options, settings.position_topic, 0)
    open_lanes(settings, close_lanes(settings, lambda: None), Terms(_EPOCH, 1, own), {}, ids, lambda: None)
    with closing(LaneWriter(settings, options, 0)) as writer:
        writer.write(Claim(_EPOCH))
    delete_claims(settings, options, {}, ids, _EPOCH)


def _forward(settings: Settings) -> None:
    begun_s = time.monotonic()

    def is_done(process: ForwardProcess) -> bool:
        # A lane that may not be read says nothing.
        assert time.monotonic() < begun_s + 60
        return bool(process.counts.taken[0])

    ForwardProcess(settings, "test").run(is_done)


def _release(settings: Settings) -> None:
    ReleaseProcess(settings, "test").run(lambda process: bool(process.shards) and process.drained)


def _publish(settings: Settings, topic: str = "") -> None:
    with Publisher(settings, topic or settings.topics.input[0]) as publisher:
        assert len(list(publisher.publish([b"v"]))) == 1


def _publish_output(settings: Settings) -> None:
    _publish(settings, settings.topics.output)


def _subscribe(settings: Settings) -> None:
    with Subscriber(settings, settings.topics.output, from_beginning=True) as subscriber:
        assert len(list(subscriber.records(count=1, timeout_ms=30_000))) == 1


def _read_status(settings: Settings) -> None:
    input_bounds(settings)
    read_lease(librdkafka_options(settings.kafka), settings.lease_topic)
    ready_shards(settings, 0)
    lane_statuses(settings, [])
    for group in (release_group(settings), forward_group(settings)):
        running_members(settings, group)


_DO: dict[str, Callable[[Settings], object]] = {
    "job": _stage,
    "release": _release,
    "forward": _forward,
    "publisher": _publish,
    "subscriber": _subscribe,
    "status": _read_status,
    "topics": ensure_topics,
}
# Steps that another login has taken before.
_BEFORE: dict[str, tuple[Callable[[Settings], object], ...]] = {
    "job": (_publish,),
    "release": (_publish, _stage),
    "forward": (_publish, _stage),
    "subscriber": (_publish_output,),
    "status": (_publish, _stage),
}


@pytest.mark.takes(6)
@pytest.mark.parametrize("login", some_thorough(_DO, always=("job", "forward", "publisher", "subscriber")))
def test_each_missing_right_is_named(
    login: str, names: list[str], owner: Settings, log_in_as: LogInAs, allow: Allow, revoke: Allow
) -> None:
    if login == "topics":
        names = [name.replace("app-", "new-") for name in names]
    settings = load_settings(None, [*names, *log_in_as(login)], environ={})
    for prepare in _BEFORE.get(login, ()):
        prepare(owner)
    rights = [right for right in documented_rights(settings) if right.login == login and not _is_optional(right)]
    for right in rights:
        _change(allow, right)
    for right in rights:
        if (login, right.operation) == ("topics", "DescribeConfigs"):
            # Only topics that exist are looked at.
            ensure_topics(settings)
        _change(revoke, right)
        if login == "release":
            # Messages that do not need this right are released, and are gone for the next one.
            _stage(owner)
        if right.operation != "Describe":
            # So that the resource is seen, and the error is about the right itself.
            _change(allow, replace(right, operation="Describe"))
        with pytest.raises(RightMissing) as raised:
            _DO[login](settings)
        assert f"the right {right.operation} " in str(raised.value), right
        assert right.name.removeprefix("kafka-") in str(raised.value), right
        _change(allow, right)
    _DO[login](settings)


def test_a_rescale_without_the_right_to_add_partitions_names_it(
    names: list[str], owner: Settings, log_in_as: LogInAs, allow: Allow
) -> None:
    settings = load_settings(None, [*names, *log_in_as("job")], environ={})
    for right in documented_rights(settings):
        if right.login == "job":
            _change(allow, right)
    with pytest.raises(RightMissing, match=rf"to give {settings.progress_topic} 3 partitions.*the right Alter there"):
        ensure_shards(settings, 3)


def _change(permission: Allow, right: Right) -> None:
    permission([right.name], right.acl_operation, kind=right.kind, pattern=right.pattern, user=right.login)


def _is_optional(right: Right) -> bool:
    return any(
        (right.login, right.operation) == (login, operation) and right.name.endswith(f"-{end}")
        for login, operation, end in _NOT_REQUIRED
    )
