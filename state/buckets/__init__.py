"""Buckets: the mutable one of each shard, and the sealed ones, cut into segments.

Nothing here reads or writes a table; `sinks.bucket_table` does. After Pulsar's `BucketDelayedDeliveryTracker`.

Read `mutable` (one shard from batch to batch), `operator` (the same as Spark calls it), `segments` (how a sealed
bucket is cut), `table_rows` (how it is stored), `catalog` (what the driver knows of it), `window` (what falls due
next), `merge` (small buckets become larger ones), `reseal` and `salvage` (after a lost checkpoint, after a damaged
file).

A stored chunk has up to 2,000 messages or 1 MB, the place of its first message in the order, and the due time of its
last. The partition column `part` is a chunk's time partition, the range of due time that is deleted whole; near ranges
are short (`storage.time_partition`), far ones longer, so that a year of delays does not make thousands of files for
each bucket. Metadata rows are in a part of their own.
"""
