"""Spark itself: its session and options, its Python workers, and why it may not start.

It knows neither the query nor the tables.

Read `session`, `exclusive_session` (with the lease), `shard_keys`, `worker_daemon`, `start_failure`, `startup_noise`,
`submit_files`, `cds_training`.

- A shard's delivery runs in a Python worker process of its own (`session.worker_pool`), which keeps the shard's
  producer from batch to batch. Spark hands out the Python worker that has been idle longest; in a shared pool most
  batches would open a producer, fence the last one and read the marker again.
- Python workers are forked from `worker_daemon`, which has a short import path, has imported what the tasks need, and
  has frozen it for the garbage collector.
- Local files are handled inside the JVM (`session`): Hadoop's own class forks a process for each file where libhadoop
  is not installed. s3a and hdfs are left as they are.
"""
