"""The status of an application, read from outside: waiting messages, their due times, and the job's progress.

Works while the job runs and while it is down. Writes nothing and locks nothing.

Read `status` (what a status is), `running` (the job says it), `read` (or it is read from the checkpoint and the table),
`sealed` (sealed messages that wait after one batch), `broker` (facts that only the broker knows), `ready` (messages
that are staged and not released), `lanes` (how far forwarders are), `processes` (which run), `input_lag`,
`due_histogram`, `figures` (the few that every view shows), `formats` (JSON and tables), `sample` (the data of charts),
`problems` (warnings of processes), and `screen` (for `delayline top`).

`messages` has the waiting messages: `staged_rows` in the logs, `sealed_rows` in the table, and `waiting_rows` for its
tasks. `look` has a selection of them. `look_reader` looks for `delayline peek` and the page: through the running job
(`job_looks`, with `look_request`), or with a Spark of its own. `json_values` and `instants` format the values.
`messages` and `read` share `storage_reader`.

A status that is read describes the application after its last committed batch:

- Mutable buckets: the state of that batch, through Spark's state data source.
- Sealed buckets: the buckets of batches up to that batch. A bucket that a later batch sealed is left out, because its
  messages still count in the state.
- Input: the offsets that the batch read.
- Ready: messages that batches up to that batch have staged, and that are not released by now.

How exact its histogram of due times is (the running job takes each segment for evenly spread):

- Due times in mutable buckets are exact to the millisecond.
- A segment between two borders of the histogram counts as a whole.
- If a border falls inside a segment, the index's counts per time slot are read, without the offsets: column pruning
  drops these. If a border falls inside a time slot, the slot's count is estimated.
- If a segment is staged in part, one chunk of it is read: the chunk that contains the cutoff.
"""
