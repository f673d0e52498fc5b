"""Output, exactly once: sealed buckets to Delta, and due messages and the service's own records to Kafka.

This package decides neither what is due nor what is sealed, and reads no delay headers. It does not import `sources`.

Read `buckets` (the Delta table of sealed messages), `ready_log` (from a batch to the ready log), `lanes` (from
forwarders to the near log), `release` (from there to the output topics), `group` (which processes share the work),
`internal_topics` (lease, progress and position), `topics` (creating and checking topics), `resender` (sends dead
letters to their input topics again).
"""
