"""Move to another Kafka cluster: publish to it what waits in the old one (docs/operate/move.md).

    python move.py --config old.toml --to new.toml

Both are settings of the job: the first has the old cluster and its storage, the second the new cluster. The old job is
stopped, and has read its input to the end. Releases what the old job has staged, in the old cluster, first.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from conf.kafka.clients import NO_SIZE_LIMIT
from conf.kafka.options import librdkafka_options
from conf.load import load_settings
from conf.sections import HeaderSettings
from conf.settings import Settings
from sinks.internal_topics.progress import read_progress
from sinks.resender import Outgoing
from sinks.topics.input_ends import input_bounds
from sinks.topics.partitions import offered_topics
from sinks.topics.topics import check_topics
from sources.intake.accept import accept
from sources.intake.schedule_headers import repeat_headers
from state.checkpoint.batch_settings import BatchSettings, batch_settings_from
from state.checkpoint.origin import CheckpointOrigin
from state.repeats.schedule import REPEAT_HEADERS, Schedule
from streaming.checkpoint.current import current_checkpoint
from streaming.operations.resend_check import as_read
from streaming.processes.drain import drain
from streaming.status.look import repeat_of
from streaming.status.messages import waiting_messages
from streaming.status.storage_reader import reader_session

# How many messages are checked together.
_TOGETHER = 200
# An occurrence is missed if it is later than this (`clock.horizon` by default).
_HORIZON_MS = 60_000


def main(old: Settings, new: Settings) -> None:
    """Publish each waiting message to its input topic in the new cluster, as a message that is due at the same time."""
    check_topics(new)
    inputs = input_bounds(new)
    if any(end for _, end in inputs.values()):
        sys.exit("the input topics of the new cluster have records: delete these topics, and create them again")
    job = batch_settings_from(new, offered_topics(new), (0,), CheckpointOrigin("move", 0, 1))
    if job.limits_waiting:
        sys.exit("the policy max_waiting may refuse messages: leave it out until the new job has read them")
    drain(old)
    with reader_session(old) as spark:
        check_stopped(spark, old)
        waiting, now_ms = waiting_messages(spark, old), time.time_ns() // 1_000_000
        check(waiting, inputs, job, now_ms)
        count = publish(waiting, new, now_ms)
    print(f"{count} messages were published")


def check_stopped(spark: SparkSession, old: Settings) -> None:
    """Exit if the old job has not read all of its input, or was killed in the middle of a batch."""
    checkpoint = current_checkpoint(spark, old)
    read, committed = checkpoint.read_offsets(), checkpoint.last_committed()
    if committed is None:
        # After a rebuild, dead letters and answers wait for the first batch.
        sys.exit("no batch of the old job is complete, as after `rebuild`: start it again, and stop it a minute later")
    for (topic, partition), (_, end) in input_bounds(old).items():
        if read.get(topic, {}).get(str(partition), 0) < end:
            sys.exit(
                f"{topic}/{partition} has unread records: start the old job again, and stop it when it has read all"
            )
    options = librdkafka_options(old.kafka)
    markers = (read_progress(options, old.progress_topic, shard) for shard in range(old.bucket.shards))
    if any(marker is not None and marker.batch.batch_id > committed for marker in markers):
        sys.exit("the old job was killed in the middle of a batch: start it again, and stop it by SIGTERM")


def check(waiting: DataFrame, inputs: Collection[tuple[str, int]], job: BatchSettings, now_ms: int) -> None:
    """Exit if the new job, with the batch settings `job`, would not take each message as it waits."""
    rows, names = waiting_rows(waiting), set[bytes]()
    while some := list(islice(rows, _TOGETHER)):
        if (problem := objection(some, inputs, job, now_ms, names)) is not None:
            sys.exit(
                f"{problem}. Nothing is published: the new job would not take each message as it waits. Change its "
                "settings, or start the old job again, and stop it when it has delivered this message"
            )


def objection(
    rows: Sequence[Mapping[str, Any]],
    inputs: Collection[tuple[str, int]],
    job: BatchSettings,
    now_ms: int,
    names: set[bytes],
) -> str | None:
    """Return which of `rows` the new job would not take as it waits, and why; None if it would take each of them.

    The new job reads the partitions `inputs`. `names` are the names of the messages before. Adds those of `rows`.
    """
    pairs = [(row, record) for row in rows if (record := moved(row, job.headers, now_ms)) is not None]
    accepted, requests = accept(as_read([record for _, record in pairs]), job, now_ms)
    for (row, record), taken in zip(pairs, accepted.slice(0, len(pairs)).to_pylist(), strict=True):
        if (row["topic"], row["partition"]) not in inputs:
            return f"{row['id']}: the new job does not read partition {row['partition']} of {row['topic']}"
        if taken["error_text"] is not None:
            return f"{row['id']}: {taken['error_text']}"
        due_ms = int(dict(record.headers)[job.headers.deliver_at] or b"")
        headers = [{"key": name, "value": value} for name, value in record.headers if name not in REPEAT_HEADERS]
        # While a message waits that repeats, it has two headers more.
        found = {**taken, "headers": taken["headers"][: -2 if row["repeats"] else None]}
        waits = {"deliver_at_ms": due_ms, "output_topic": row["output_topic"], "key": record.key, "headers": headers}
        if changed := [name for name, value in waits.items() if found[name] != value]:
            return f"{row['id']}: its {' and '.join(changed)} would change"
    ids = dict(zip(accepted.column("offset").to_pylist(), (row["id"] for row, _ in pairs), strict=False))
    for request in requests.to_pylist():
        if request["name"] in names:
            return f"{ids[request['request_offset']]}: it would have the name of another message, and replace that"
        names.add(request["name"])
    return None


def publish(waiting: DataFrame, new: Settings, now_ms: int) -> int:
    """Publish the messages `waiting`, and return how many there were."""
    options = {**NO_SIZE_LIMIT, "enable.idempotence": True, "linger.ms": 20}
    producer = Producer({**librdkafka_options(new.kafka), **options})
    failed: list[object] = []
    count = 0
    # In this order, messages that are due at the same time stay in their order.
    for row in waiting_rows(waiting.orderBy("topic", "partition", "offset")):
        if (record := moved(row, new.headers, now_ms)) is None:
            continue
        while True:
            try:
                producer.produce(
                    record.topic, record.value, record.key, record.partition, headers=record.headers,
                    # The check has computed due times by it.
                    timestamp=record.timestamp_ms,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )  # fmt: skip
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
    if producer.flush(120) or failed:
        sys.exit(f"not all were published ({failed[:1]}): delete the input topics of the new cluster, and begin again")
    return count


def waiting_rows(waiting: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the rows of `waiting`. Exits if a message is staged, since the old job has delivered it or will do so."""
    for row in waiting.toLocalIterator():
        if row.place == "ready":
            sys.exit("messages are staged: was the old job started again meanwhile? Stop it, and begin again")
        yield row.asDict()


def moved(row: Mapping[str, Any], names: HeaderSettings, now_ms: int) -> Outgoing | None:
    """Return the record by which the new job, where headers have these `names`, takes a row as it waits.

    It is published at `now_ms` (epoch ms), which decides whether the waiting occurrence is missed. Returns None if that
    one does not come then, and no other one follows.
    """
    headers = [(header["key"], as_bytes(header["value"])) for header in row["headers"] or []]
    due_ms, rule = row["deliver_at_ms"], list[tuple[str, bytes]]()
    if row["repeats"]:
        schedule, waiting = repeat_of(row)
        # The new job would deliver the first occurrence however late it is, so `none` is applied here.
        occurrence = next(schedule.coming(waiting, due_ms < now_ms - _HORIZON_MS, now_ms), None)
        if occurrence is None:
            return None
        headers, due_ms, rule = headers[:-2], occurrence.at_ms, rest_of(schedule, occurrence.number)
    own = {*names.delays, names.deliver_to}
    kept = [header for header in headers if header[0] not in own]
    schedule_of_row = [(names.deliver_at, b"%d" % due_ms), (names.deliver_to, row["output_topic"].encode())]
    key, value = as_bytes(row["key"]), as_bytes(row["value"])
    return Outgoing(row["topic"], row["partition"], now_ms, key, value, [*kept, *schedule_of_row, *rule])


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
