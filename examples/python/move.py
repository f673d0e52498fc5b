"""Move to another Kafka cluster: publish to it what waits in the old one (docs/operate/move.md).

    python move.py --config old.toml --to new.toml

Both are settings of the job: the first has the old cluster and its storage, the second the new cluster. The old job is
stopped, and has read its input to the end. Releases what the old job has handed over, in the old cluster, first.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from conf.kafka.options import librdkafka_options
from conf.load import load_settings
from conf.rejected import Rejected
from conf.sections import HeaderSettings
from conf.settings import Settings
from sinks.internal_topics.progress import read_progress
from sinks.topics.input_ends import input_bounds
from sources.intake.header_columns import Rejections, flatten
from sources.intake.presets import name_messages
from sources.intake.repeats import find_repeats
from sources.intake.schedule_headers import repeat_headers
from state.checkpoint.batch_settings import DelayPolicy, policy_from
from state.message import HEADERS
from state.repeats.schedule import Schedule
from streaming.checkpoint.current import current_checkpoint
from streaming.processes.drain import drain
from streaming.status.look import repeat_of
from streaming.status.messages import waiting_messages
from streaming.status.storage_reader import reader_session


def main(old: Settings, new: Settings) -> None:
    """Publish each waiting message to its input topic in the new cluster, as a message that is due at the same time."""
    if any(policy.fixed_delay is not None for policy in (new.policies.of_all, *new.policies.by_topic.values())):
        sys.exit("the policy fixed_delay would delay messages once more: leave it out until the new job has read them")
    if enveloped := sorted(topic for topic, names in new.presets.by_topic.items() if name_messages(names)):
        sys.exit(
            f"{', '.join(enveloped)}: a waiting message has the key of its target, which its preset would take for its "
            "name, so that one would replace another: leave out the preset until the new job has read them"
        )
    if any(end for _, end in input_bounds(new).values()):
        sys.exit("the input topics of the new cluster have records: delete these topics, and create them again")
    drain(old)
    with reader_session(old) as spark:
        check_stopped(spark, old)
        waiting = waiting_messages(spark, old)
        check_repeating(waiting, new)
        count = publish(waiting, new)
    print(f"{count} messages were published")


def check_stopped(spark: SparkSession, old: Settings) -> None:
    """Exit if the old job has not read all of its input, or was killed in the middle of a batch."""
    checkpoint = current_checkpoint(spark, old)
    read, committed = checkpoint.read_offsets(), checkpoint.last_committed()
    for (topic, partition), (_, end) in input_bounds(old).items():
        if read.get(topic, {}).get(str(partition), 0) < end:
            sys.exit(
                f"{topic}/{partition} has unread records: start the old job again, and stop it when it has read all"
            )
    options = librdkafka_options(old.kafka)
    markers = (read_progress(options, old.progress_topic, shard) for shard in range(old.bucket.shards))
    if any(
        marker is not None and marker.batch.batch_id > (-1 if committed is None else committed) for marker in markers
    ):
        sys.exit("the old job was killed in the middle of a batch: start it again, and stop it by SIGTERM")


def check_repeating(waiting: DataFrame, new: Settings) -> None:
    """Exit if the new job would refuse one of the messages that repeat."""
    of_all, now_ms = policy_from(new.policies.of_all), time.time_ns() // 1_000_000
    by_topic = {topic: policy_from(policy) for topic, policy in new.policies.by_topic.items()}
    for row in waiting.where("repeats AND place <> 'ready'").toLocalIterator():
        policy = by_topic.get(row.topic, of_all)
        if (error := refusal(moved_headers(row.asDict(), new.headers), policy, new.headers, now_ms)) is not None:
            sys.exit(
                f"the new job would refuse {row.id}, which repeats: {error}. Nothing is published. Change "
                "its policies, or start the old job again, and stop it when it has delivered what is late"
            )


def refusal(
    headers: list[tuple[str, bytes | None]], policy: DelayPolicy, names: HeaderSettings, now_ms: int
) -> Rejected | None:
    """Return why a message that repeats would be refused if it is published now (epoch ms) with `moved_headers`."""
    rejections = Rejections()
    pairs = [{"key": name, "value": value} for name, value in headers]
    repeats = find_repeats(flatten(pa.array([pairs], HEADERS)), 1, policy, (), rejections)
    dues_ms = np.array([int(value or b"") for name, value in headers if name == names.deliver_at])
    repeats.first_due(dues_ms, np.ones(1, dtype=bool), np.array([now_ms]), policy, now_ms, rejections)
    return rejections.errors.get(0)


def publish(waiting: DataFrame, new: Settings) -> int:
    """Publish the messages `waiting`, and return how many there were."""
    producer = Producer({**librdkafka_options(new.kafka), "enable.idempotence": True, "linger.ms": 20})
    failed: list[object] = []
    count = 0
    # In this order, messages that are due at the same time stay in their order.
    for row in waiting.orderBy("topic", "partition", "offset").toLocalIterator():
        if row.place == "ready":
            sys.exit("messages are handed over: was the old job started again meanwhile? Stop it, and begin again")
        headers = moved_headers(row.asDict(), new.headers)
        while True:
            try:
                producer.produce(
                    row.topic, as_bytes(row.value), as_bytes(row.key), row.partition, headers=headers,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )  # fmt: skip
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
    if producer.flush(120) or failed:
        sys.exit(f"not all were published ({failed[:1]}): delete the input topics of the new cluster, and begin again")
    return count


def moved_headers(row: Mapping[str, Any], names: HeaderSettings) -> list[tuple[str, bytes | None]]:
    """Return the headers by which the new job, where headers have these `names`, takes a row as it waits."""
    kept, due_ms, rule = row["headers"] or [], row["deliver_at_ms"], list[tuple[str, bytes]]()
    if row["repeats"]:
        schedule, occurrence = repeat_of(row)
        kept, due_ms, rule = kept[:-2], occurrence.at_ms, rest_of(schedule, occurrence.number)
    own = {*names.delays, names.deliver_to}
    return [
        *((header["key"], as_bytes(header["value"])) for header in kept if header["key"] not in own),
        (names.deliver_at, b"%d" % due_ms),
        (names.deliver_to, row["output_topic"].encode()),
        *rule,
    ]


def rest_of(schedule: Schedule, number: int) -> list[tuple[str, bytes]]:
    """Return the headers that ask for the occurrences of `schedule` from this `number` on."""
    rule = schedule.rule
    return repeat_headers(
        rule.cron or f"every {rule.interval_ms}ms",
        rule.zone if rule.cron else None,
        None if schedule.until_ms is None else str(schedule.until_ms),
        None if schedule.count is None else str(schedule.count - number + 1),
        schedule.missed,
        checked=False,
    )


def as_bytes(value: bytearray | None) -> bytes | None:
    """Return a binary value of Spark as the client takes it."""
    return None if value is None else bytes(value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="the settings of the old job")
    parser.add_argument("--to", type=Path, required=True, metavar="CONFIG", help="the settings of the new job")
    arguments = parser.parse_args()
    main(load_settings(arguments.config), load_settings(arguments.to))
