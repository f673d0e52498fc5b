"""The domain: the message, its order, its shard, and what becomes of it while it waits. Plain values and Arrow, no I/O.

No Spark session, no Kafka client and no clock in here; only the tasks' functions for Spark in `buckets` know Spark's
row batches. `sources` make messages, `sinks` take them, and both know this package and not each other.

Read `message`, `order` and `shards`, `chunk_merge`, then the packages `buckets`, `checkpoint` and `index`. Last comes
`dead_letter` (the headers of one).
"""
