"""The start of the job opens the lanes for forwarders, closes them, or leaves them as they are.

| forwarders (`[forward]`) | the lanes | the start |
| --- | --- | --- |
| off | were never open, or are closed | keeps them closed |
| off | are open | closes them: records without a claim belong to the batches |
| on | are open, in the wanted number | tells forwarders the present settings |
| on | are open, in another number | closes them, and opens them again |
| on | are closed, or were never open | opens them after all records that batches have planned to read |
| on | are of an earlier epoch, as with `run --fresh` | opens them after all records that are there now |

A new application has no batch that could have read anything. Its lanes are opened before Spark has started.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

from conf.errors import CheckpointMismatch
from conf.kafka.options import librdkafka_options
from conf.sections import ForwardSettings
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.position_reader import read_position
from sinks.internal_topics.progress import read_markers
from sinks.lanes.opening import close_lanes, open_lanes
from sinks.lanes.terms import read_terms, write_terms
from sinks.topics.input_ends import input_bounds
from sinks.topics.limits import dead_letter_bytes
from sinks.topics.partitions import offered_topics, partition_counts
from sinks.topics.topic_ids import input_ids
from state.checkpoint.batch_settings import batch_settings_from
from state.checkpoint.input_ids import newest_ids, recreated, with_present
from state.checkpoint.origin import CheckpointOrigin, InputIds, Offsets, as_offsets
from state.claims import Terms
from streaming.checkpoint.recovery import Recovered
from streaming.job.lanes.claim_watch import LOST_CLAIMS_REMEDY, ClaimWatch
from streaming.storage.paths import BUCKETS, local_checkpoint, local_folder, storage_path

log = logging.getLogger(__name__)


def without_forwarders(settings: Settings) -> Settings:
    """Return `settings` with forwarders off."""
    return settings.model_copy(update={"forward": ForwardSettings(processes=0)})


def open_new_application(settings: Settings, check_lease: Callable[[], None]) -> None:
    """Open the lanes of an application that has never run, so that its first messages need not wait for Spark.

    Without Spark, the storage can be checked only if it is a folder of this host. Raises BrokerUnreachable, and the
    error of `check_lease` if this process does not hold the lease.
    """
    if not settings.forward.is_on or not _is_unused_folder(settings):
        return
    if read_terms(settings, librdkafka_options(settings.kafka)) is not None or _has_run(settings):
        return
    present = input_ids(settings)
    origin = CheckpointOrigin("", 0, settings.bucket.shards)
    offered, most_bytes = offered_topics(settings), dead_letter_bytes(settings)
    ids = with_present({}, present)
    own = batch_settings_from(settings, offered, range(origin.shards), origin, most_bytes, ids)
    terms = Terms(origin.epoch, settings.forward.lanes(origin.shards), own)
    open_lanes(settings, close_lanes(settings, check_lease), terms, {}, present, check_lease)
    log.info("opened %d lanes; this application has never run before", terms.lanes)


def _is_unused_folder(settings: Settings) -> bool:
    """Return whether the storage is a folder of this host without files of an application."""
    storage = local_folder(storage_path(settings))
    if storage is None:
        return False
    return not local_checkpoint(storage).exists() and not (storage / BUCKETS).exists()


def _has_run(settings: Settings) -> bool:
    return any(marker is not None for marker in read_markers(settings)) or _had_forwarders(settings)


def _had_forwarders(settings: Settings) -> bool:
    """Return whether forwarders have ever taken messages that are released by now."""
    options, topic = librdkafka_options(settings.kafka), settings.position_topic
    shards = range(partition_counts(settings, [topic]).get(topic, 0))
    positions = (read_position(options, topic, shard) for shard in shards)
    return any(position is not None and position.forwarded for position in positions)


def start_lanes(settings: Settings, state: Recovered, lease: HeldLease) -> ClaimWatch:
    """Open or close the lanes as the settings say, and return the watch of their claims for the batches to come.

    Terms are written in any case. An earlier job may be paused just before it writes its own, and this fences it.

    Raises CheckpointMismatch if the claims topic has lost records that a start needs; BrokerUnreachable,
    ApplicationHeld.
    """
    terms = read_terms(settings, librdkafka_options(settings.kafka))
    newest, origin = state.settings_history.newest, state.checkpoint.origin
    read = state.checkpoint.read_offsets() if state.planned is not None else origin.offsets
    wanted = Terms(origin.epoch, settings.forward.lanes(origin.shards), newest)
    if wanted.lanes and terms is None and state.planned is not None and _had_forwarders(settings):
        raise CheckpointMismatch(
            f"{settings.claims_topic} has no terms, although forwarders have claimed messages: the topic was "
            f"created again. Batches would deliver the claimed messages a second time. {LOST_CLAIMS_REMEDY}"
        )
    # Claims of a topic that was created again are about the old topic.
    again = recreated(newest.input_ids, input_ids(settings))
    ids = {topic: known for topic, known in newest.input_ids.items() if topic not in again}

    def watch_lanes() -> ClaimWatch:
        return ClaimWatch(settings, wanted.lanes, wanted.epoch, read, newest.input_ids, lease.check_now)

    open_now = terms.lanes if terms is not None and terms.epoch == wanted.epoch else 0
    stay_open = open_now == wanted.lanes > 0
    if wanted.lanes and not stay_open:
        # Check before the lanes are opened after the records that batches have read: forwarders would continue in a
        # partition that is cut.
        with closing(watch_lanes()) as before:
            if open_now:
                before.check_complete(read, ids, open_now)
            _check_ends(settings, before, ids)
    writers = {} if stay_open else close_lanes(settings, lease.check_now)
    if stay_open or not wanted.lanes:
        write_terms(settings, wanted, lease.check_now)
    else:
        positions = _positions(settings, state, is_new=terms is not None and terms.epoch < wanted.epoch)
        open_lanes(settings, writers, wanted, positions, newest_ids(newest.input_ids), lease.check_now)
    log.info(
        "%s", f"opened {wanted.lanes} lanes" if wanted.lanes else "forwarders are off; batches process all messages"
    )
    watch = watch_lanes()
    try:
        if stay_open:
            watch.check_complete(read, ids, open_now)
        _check_ends(settings, watch, ids)
    except BaseException:
        watch.close()
        raise
    return watch


def _check_ends(settings: Settings, watch: ClaimWatch, ids: InputIds) -> None:
    watch.check_ends({source: end for source, (_, end) in input_bounds(settings).items()}, ids)


def _positions(settings: Settings, state: Recovered, is_new: bool) -> Offsets:
    """Return from which offsets on forwarders may take records."""
    if not is_new:
        return state.checkpoint.origin.offsets if state.planned is None else state.planned.offsets
    return as_offsets({source: end for source, (_, end) in input_bounds(settings).items()})
