"""The Spark session: its options, its Python workers, and the errors of its start.

Does not depend on the query or on the tables.

Read `options`, `session` (its start), `exclusive_session` (with the lease), `pools`, `worker_daemon`, `start_failure`,
`startup_noise`, `submit_files`, `cds_training`.

- Python workers are forked from `worker_daemon`. The daemon has a short import path, has imported the modules that the
  tasks need, and has frozen their objects for the garbage collector. It also starts the writer host, which keeps the
  shards' producers from batch to batch (`sinks.ready_log.writer_host`).
- The JVM handles local files itself (`options`): without libhadoop, Hadoop's own class starts a process for each file.
  s3a and hdfs are not changed.
"""
