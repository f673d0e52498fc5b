"""Putting it together: the Spark session, the query, one batch's steps, recovery, and the command line.

The only package that knows all others, and none of them knows it.

Read `job` first: `job.query` (how the parts are joined) and `job.batch` (what one batch does). Then `checkpoint`
(recovery), `maintenance` (beside the batches), `operations` (on a stopped job), `status`, `cli`. `spark` and
`storage` are what these stand on; `local` is the embedded broker, `demo` the whole on one machine.
"""
