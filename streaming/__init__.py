"""Joins the parts: the Spark session, the query, the steps of a batch, forwarders, recovery, the command line.

This package imports all others, and none of them imports it.

Read `job` first: `job.query` (how the parts are joined) and `job.batch` (what one batch does). Then `processes` (the
release processes and forwarders of a job), `forward` (what a forwarder does), `checkpoint` (recovery), `maintenance`
(next to the batches), `operations` (on a stopped job), `status`, `monitor` (metrics and health), `web` (the page),
`capacity` (what a load takes), `cli`. All of these but `processes`, `forward`, `monitor` and `capacity` use `spark` and
`storage`. `local` is the embedded broker, `demo` runs everything on one machine, and `judge` checks what was delivered.
"""
