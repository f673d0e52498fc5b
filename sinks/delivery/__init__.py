"""From a batch's due messages to the output topics, in order and exactly once, past outages and refusals.

It runs in Spark's tasks, one for each shard, and uses neither buckets nor the query.

Read `task` (what Spark calls), `shard_delivery` (one shard's batch), `transactions` (how it is cut),
`transactional_writer` (one transaction), `records` (what a subscriber gets), `record_check` and `reports` (what a
topic refuses), `broker_retry`, `rate_limiter`, `wall_clock`.

A transaction's messages (64 MB at most) are kept until it is committed: after an outage a new writer writes them
again, unless the marker records them as committed. A record that a topic refuses, for its size, for want of a key or
for its timestamp, goes to the dead-letter topic. The writer finds that record for certain: no batch of the client is
larger than the smallest limit, so a batch refused for its size is a single record; and brokers name each invalid record
of a batch. A callback for each record costs time, so a transaction is first written without.

Markers have no timestamp, since a broker's limit might refuse that of a message long overdue. The progress topic is an
internal, compacted topic, since consumer group offsets expire.
"""
