"""Maintenance of sealed buckets, concurrent with the batches: it deletes staged parts and merges buckets.

It changes only data of committed batches. No batch waits for it, and it waits for no batch.

Read `maintenance` (which services there are), `step` (what a service has another thread do), `failures` (what follows
if that fails), and then the services: `deletion`, `clean_up`, `id_joins`, and `bucket_merges` with `merge_plan` (which
merges are due), `merge_queue` (their steps), `merging` (the threads), `merge` and `stretches`.

Once all messages of a part are staged, its chunks and metadata are deleted. Its files are vacuumed an hour later.

A step that fails does not end the job. Its items are set aside, logged and counted, and tried again after a pause that
grows. Each step can be run again whatever its first try has left: a deletion and a join find less to do, a merge begins
again under another name, and the end of a merge is committed once more.

As soon as enough adjacent buckets have about the same size (`bucket.fan_in`), they become one (`state.buckets.merge`).
A merge

1. takes one slice of due time after the other: reads it from the buckets, cuts it into new segments, and commits these
   as a part of the new bucket, which nobody reads yet,
2. checks the counts,
3. in one commit, which reads and writes no message, makes the new bucket live and removes the old ones.

A thread goes on with the next slice of the merge that has the least left to do, so that a large merge does not keep
small buckets waiting. A merge that is cut off leaves its parts behind; the next start deletes them.

A merge takes only buckets of committed batches, and leaves out only messages below the last committed cutoff. So the
running batch, and its replay, find in the new bucket all that they would find in the old ones. A load of the prefetch
window may start after step 3, and before the driver's catalog has the new segments: so from before step 3 on it asks
for the parts of both, of which each version of the table has either. Delta decides all of this by partition. So a seal
and a merge do not conflict. A process that has lost its lease cannot finish a merge (`sinks.buckets.merge_commits`).
"""
