"""Maintenance of sealed buckets beside the batches: delivered parts are deleted, small buckets merged.

It changes only what committed batches have left, and never delays a batch by waiting for it.

Read `maintenance` (what is done when), then `merge`.

Time partitions that are delivered whole are deleted, their metadata rows removed, and their files vacuumed an hour
later. Metadata is compacted into a file for every 50 buckets.

Past `bucket.limit`, up to four adjacent buckets with the fewest messages become one (`state.buckets.merge`; the
choice is that of Pulsar's tracker). A merge reads them at one table version, one slice of due time after the other,
cuts segments anew, checks the counts, and replaces the old buckets in one commit. Only buckets of committed batches
are merged, and only what is below the last committed cutoff is left out: the running batch, and its replay, find in
the new bucket all that they find in the old ones. Time partitions keep their labels, so a window that is loaded
between that commit and the moment when the driver's catalog learns of it reads the same messages. If a seal comes
between, Delta refuses the commit; the merge tries again, and at last sealing waits for it.
"""
