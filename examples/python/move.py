"""Move to another Kafka cluster: publish to it what waits in the old one (docs/operate/move.md).

    python move.py --config old.toml --to new.toml

Both are settings of the job: the first has the old cluster and its storage, the second the new cluster. The old job is
stopped, and has read its input to the end. Releases what the old job has handed over, in the old cluster, first.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from conf.kafka.options import librdkafka_options
from conf.load import load_settings
from conf.settings import Settings
from sinks.internal_topics.progress import read_progress
from sinks.topics.input_ends import input_bounds
from sources.intake.presets import name_messages
from streaming.checkpoint.current import current_checkpoint
from streaming.processes.drain import drain
from streaming.status.messages import waiting_messages
from streaming.status.storage_reader import reader_session

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--config", type=Path, help="the settings of the old job")
parser.add_argument("--to", type=Path, required=True, metavar="CONFIG", help="the settings of the new job")
arguments = parser.parse_args()


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
        count = publish(waiting_messages(spark, old), new)
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


def publish(waiting: DataFrame, new: Settings) -> int:
    """Publish the messages `waiting`, and return how many there were."""
    headers = new.headers
    own = {headers.deliver_at, headers.deliver_after, headers.delay_level, headers.deliver_to}
    producer = Producer({**librdkafka_options(new.kafka), "enable.idempotence": True, "linger.ms": 20})
    failed: list[object] = []
    count = 0
    # In this order, messages that are due at the same time stay in their order.
    for row in waiting.orderBy("topic", "partition", "offset").toLocalIterator():
        if row.place == "ready":
            sys.exit("messages are handed over: was the old job started again meanwhile? Stop it, and begin again")
        kept = [(header.key, as_bytes(header.value)) for header in row.headers or () if header.key not in own]
        due = [(headers.deliver_at, b"%d" % row.deliver_at_ms), (headers.deliver_to, row.output_topic.encode())]
        while True:
            try:
                producer.produce(
                    row.topic, as_bytes(row.value), as_bytes(row.key), row.partition, headers=[*kept, *due],
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )  # fmt: skip
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
    if producer.flush(120) or failed:
        sys.exit(f"not all were published ({failed[:1]}): delete the input topics of the new cluster, and begin again")
    return count


def as_bytes(value: bytearray | None) -> bytes | None:
    """Return a binary value of Spark as the client takes it."""
    return None if value is None else bytes(value)


if __name__ == "__main__":
    main(load_settings(arguments.config), load_settings(arguments.to))
