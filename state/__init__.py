"""The domain core: the message, its order and shard, and its storage while it waits. Plain values and Arrow, no I/O.

This package has no Spark session, no Kafka client and no clock; only the task functions in `buckets` know Spark's row
batches. `sources` make messages and `sinks` take them. Both import this package, and neither imports the other.

Read `message`, `kinds` (the kinds of rows), `message_ids`, `order`, `shards`, `group_keys` and `chunk_merge`, then the
packages `buckets`, `checkpoint` and `index`, and last `header_values` (numbers and instants in headers), `dead_letter`
(the headers of a dead letter), `stub` (a dead letter without its record's value), `cancel` (requests), `answers` (to
requests), `reasons` (of answers), `names` (names that publishers give to messages), `repeats` (messages that repeat),
`name_holders` (names when records are accepted again), `recalled` (messages that release processes recall), `due_spans`
(counts of messages by when they are due), `claims`, `lanes`, `decided` and `taken` (which records forwarders take).
"""
