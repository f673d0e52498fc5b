"""Buckets: the mutable bucket of each shard, and the sealed buckets, which are cut into segments.

Modelled on Pulsar's `BucketDelayedDeliveryTracker`. This package does not read or write the table of sealed buckets;
`sinks.bucket_table` does.

Read in this order:
1. `mutable`: advances one shard from batch to batch; `operator` adapts it to Spark
2. `segments`: cuts a sealed bucket
3. `table_rows`: stores the segments as rows
4. `catalog`: lists the live segments on the driver
5. `window`: selects the messages that are due next
6. `merge`: makes one bucket of several small ones
7. `reseal`: seals the messages that a replaced checkpoint leaves behind
8. `salvage`: rebuilds segments after a file was damaged

A stored chunk holds up to 2,000 messages or 1 MB, the order key of its first message, and the due time of its last.
The partition column `part` holds the chunk's time partition: the range of due time that is deleted as a whole. Near
ranges are short (`storage.time_partition`) and far ones longer; otherwise a year of delays would make thousands of
files for each bucket. All metadata rows share a separate partition.
"""
