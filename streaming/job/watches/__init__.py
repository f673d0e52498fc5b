"""What is watched while the query runs. `streaming.job.query_watch` asks each watch twice a second.

Read `clock_watch` (the host's clock; batches ask it too), `outage_watch` (brokers that do not answer between batches),
`slow_batch_watch` (the step in which a batch stays), `progress_watch` (what Spark reports of each batch),
`task_progress` (whether a long batch goes on), `unchanged_buckets` (what waits in buckets since before the start).
"""
