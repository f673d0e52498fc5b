"""The watches of a running query. `streaming.job.query_watch` calls each watch twice a second.

Read `clock_watch` (the host's clock; batches check it too), `outage_watch` (brokers that do not answer between
batches), `slow_batch_watch` (a step that takes very long), `executor_watch` (a batch without executors),
`progress_watch` (Spark's report of each batch), `task_progress` (whether a long batch makes progress),
`unchanged_buckets` (messages that have waited in buckets since before the start).
"""
