"""Maintenance of sealed buckets, beside the batches: it deletes delivered parts and merges small buckets.

It changes only what committed batches have left. No batch waits for it, except a seal for the last try of a merge.

Read `maintenance` (what is done when), then `merge`.

A time partition that is delivered whole is deleted, with its metadata rows. Its files are vacuumed an hour later.
Metadata is compacted into one file for every 50 buckets.

Past `bucket.limit`, up to four adjacent buckets with the fewest messages become one (`state.buckets.merge`; Pulsar's
tracker chooses in the same way). A merge

1. reads the buckets at one table version, one slice of due time after the other,
2. cuts the messages into new segments,
3. checks the counts,
4. replaces the old buckets with the new one, in one commit.

A merge takes only buckets of committed batches, and leaves out only messages below the last committed cutoff. So the
running batch, and its replay, find in the new bucket all that they would find in the old ones. Messages stay in their
time partition. So a load of the prefetch window that starts after the commit, and before the driver's catalog has the
new segments, reads the same messages. If a seal comes between, Delta refuses the merge's commit, and the merge tries
again. During its last try, seals wait.
"""
