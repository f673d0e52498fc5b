"""Buckets: the mutable one of each shard, and the sealed ones, cut into segments.

Nothing here reads or writes a table; `sinks.bucket_table` does. After Pulsar's `BucketDelayedDeliveryTracker`.

Read `mutable` (one shard from batch to batch), `operator` (the same as Spark calls it), `segments` (how a sealed
bucket is cut), `table_rows` (how it is stored), `catalog` (what the driver knows of it), `window` (what falls due
next), `merge` (small buckets become larger ones), `reseal` and `salvage` (after a lost checkpoint, after a damaged
file).
"""
