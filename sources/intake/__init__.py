"""The job's way in: read the input topics, accept each record, and move the clock.

It decides when and where a message goes, and holds nothing. Pure but for `kafka_reader`, `clock` and `stamp_check`.

Read `kafka_reader`, `accept` (a table of records becomes a table of messages), `schedule` (one delay header),
`partitioner` (Kafka's rule for keys), `clock` (what moves the watermark), `schedule_headers` (from `--after 10s` to
headers), `stamp_check` (timestamps that Spark cannot read).
"""
