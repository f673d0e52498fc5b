"""Getting out: sealed buckets into Delta, due messages and the service's own records into Kafka, each exactly once.

It decides neither what is due nor what is sealed, and reads no schedule. This package does not know `sources`.

Read `bucket_table` (the Delta table), `delivery` (from a batch to the output topics), `internal_topics` (lease and
progress), `topics` (what topics must be like), `resender` (dead letters to the input topics again).
"""
