"""Buckets: the mutable bucket of each shard, and the sealed buckets, which are cut into segments.

Modelled on Pulsar's `BucketDelayedDeliveryTracker`. This package does not read or write the table of sealed buckets;
`sinks.buckets` does.

Read in this order:
1. `mutable`: advances one shard from batch to batch; `operator` adapts it to Spark; `moves`: gives messages of a batch
   another due time, once it is decided
2. `parts`: names the units of storage
3. `segments`: cuts a sealed bucket
4. `table_rows`: stores the segments as rows
5. `catalog`: lists the live segments on the driver
6. `reach`: chooses how far ahead messages are loaded; `window`: selects them, in order and by shard
7. `merge`: makes one bucket of several
8. `reseal`: seals the messages that a replaced checkpoint leaves behind
9. `cancelled`: the ids of cancelled messages; `retimed`: the ids of messages with another due time than their records
   say; `id_rows`: stores these, and names, as rows; `cancelled_filter`: leaves cancelled messages out
10. `salvage`: rebuilds segments after a file was damaged

The storage is log-structured: the cost of a seal depends on how many messages it has, not on how far apart they are
due. A stored chunk holds up to 2,000 messages or 1 MB in delivery order, the order key of its first message, and the
due time of its last. A seal writes two files for each task, one with chunks and one with metadata, which form one part.
A merge writes larger buckets, with a part for each slice of due time. So a window reads about one chunk more than it
needs of each bucket, and a part is deleted as a whole once its last message is staged.
"""
