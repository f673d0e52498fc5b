"""Spark itself: its session and options, its Python workers, and why it may not start.

It knows neither the query nor the tables.

Read `session`, `exclusive_session` (with the lease), `shard_keys`, `worker_daemon`, `start_failure`, `startup_noise`,
`submit_files`, `cds_training`.
"""
