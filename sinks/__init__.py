"""Getting out: sealed buckets into Delta, due messages into Kafka, each exactly once.

It decides neither what is due nor what is sealed, and reads no schedule.
"""
