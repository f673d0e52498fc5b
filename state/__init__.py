"""Holding: the mutable bucket of each shard, and how sealed buckets are cut and described.

The bucket and the segments are plain values on Arrow tables, without Spark, Kafka or a clock in them;
`adapter` is the thin layer that Spark calls.
"""
