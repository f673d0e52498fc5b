"""Input topics that were deleted and created again since they were read: refused, or read from their beginning.

Spark goes on at the offsets of its log, whichever topic they belong to. So the checkpoint records Kafka's ids of the
input topics with the settings of its batches, and in the markers of the staging.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from conf.errors import CheckpointMismatch
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.lanes.terms import read_terms
from sinks.topics.input_ends import input_bounds
from sinks.topics.topic_ids import input_ids
from state.checkpoint.input_ids import left_out, recreated, with_offsets, with_present
from state.checkpoint.origin import InputIds, Offsets, as_offsets
from streaming.checkpoint.checkpoint import Checkpoint

log = logging.getLogger(__name__)


def recreated_error(topics: Collection[str]) -> CheckpointMismatch:
    """Return the error for input topics that were deleted and created again since they were read."""
    names = ", ".join(topics)
    named = f"input topics {names} were" if len(topics) > 1 else f"input topic {names} was"
    return CheckpointMismatch(
        f"{named} deleted and created again since the job read it. Unread records of the old topic are lost. "
        "Messages that were accepted from it still wait. To read the new topic from its beginning, start "
        "with topics.skip_expired=true. New messages may then have the ids of old ones: see "
        "docs/operate/runbooks/input-topic-recreated.md"
    )


def recreated_inputs(
    settings: Settings, known: InputIds, unread: Collection[str] = (), present: Mapping[str, str] | None = None
) -> list[str]:
    """Return the input topics with `present` ids that are not the last ones in `known`.

    Without `topics.skip_expired`, raises CheckpointMismatch for any of them that is not `unread`: nothing is lost with
    unread topics. Asks the brokers for the present ids if they are not given: raises BrokerUnreachable.
    """
    topics = recreated(known, input_ids(settings) if present is None else present)
    refused = [topic for topic in topics if topic not in unread]
    if refused and not settings.topics.skip_expired:
        raise recreated_error(refused)
    return topics


def begun_ids(settings: Settings, known: InputIds, present: Mapping[str, str], epoch: int) -> InputIds:
    """Return the ids `known` by the markers, and newer ids of topics created again that a job has begun to read since.

    A start writes terms with the ids before its first batch, also without forwarders. A marker has them only once a
    batch stages something, and other batches may seal before that. Raises the errors of `read_terms`.
    """
    terms = read_terms(settings, librdkafka_options(settings.kafka))
    if terms is None or terms.epoch != epoch:
        return known
    begun = terms.settings.input_ids
    again = (topic for topic in recreated(known, present) if begun.get(topic, [])[-1:] == [present[topic]])
    return known | {topic: begun[topic] for topic in again}


def refuse_returned(settings: Settings, known: InputIds, offsets: Offsets) -> None:
    """Raise CheckpointMismatch if batches have run without a topic that is an input again, by the `known` ids.

    Not if the newest batch still has `offsets` of the topic.
    """
    if returned := sorted(left_out(known) & {*settings.topics.input} - offsets.keys()):
        raise CheckpointMismatch(
            f"topics.input names {', '.join(returned)} again, but batches have run without it, and nothing records "
            "how far it was read. Its messages would be delivered twice. Leave it out of topics.input, and publish to "
            "a topic with another name"
        )


def read_nothing_of(checkpoint: Checkpoint, topics: Collection[str], unread: Collection[str], planned: int) -> None:
    """Let batch `planned`, which was cut off, read nothing of `topics`. Its offsets belong to topics that are gone.

    An `unread` topic stays at offset 0, so that it is unread for the next start too if the replay is cut off.
    """
    starts, ends = checkpoint.read_offsets(), checkpoint.planned(planned).offsets
    for topic in topics:
        if starts.get(topic) == ends.get(topic):
            continue
        log.warning(
            "batch %d continues without records of %s, which is gone or no input any more: from %s to %s in the old "
            "topic",
            planned, topic, starts.get(topic), ends.get(topic),
        )  # fmt: skip
    nothing = {topic: dict.fromkeys(own, 0) if topic in unread else own for topic, own in ends.items()}
    checkpoint.write_read_offsets(with_offsets(starts, topics, nothing))
    checkpoint.write_planned_offsets(planned, with_offsets(ends, topics, nothing))


def read_from_beginning(
    settings: Settings, checkpoint: Checkpoint, topics: Collection[str], unread: Collection[str]
) -> None:
    """Let the next batch read `topics` from their beginning. Every planned batch must be committed.

    Then records their ids, for an `unread` topic in place of the old one. If that is cut off, the next start finds the
    old ids, and repeats both: no batch ran meanwhile.
    """
    present, committed = input_ids(settings), checkpoint.last_committed()
    assert committed is not None
    beginning = as_offsets(dict.fromkeys(input_bounds(settings), 0))
    checkpoint.write_read_offsets(with_offsets(checkpoint.read_offsets(), topics, beginning))
    history = checkpoint.settings_history()
    newest = replace(history.newest, input_ids=with_present(history.newest.input_ids, present, unread))
    checkpoint.write_settings_history(history.amended(committed + 1, newest, keep_from=committed))
    log.warning(
        "reading %s from the beginning: it was created again since batch %d. %s",
        ", ".join(topics), committed,
        "Nothing was read before" if {*topics} <= {*unread} else "Messages may have the ids of old ones",
    )  # fmt: skip
