"""What waits, what is due when, and how far the job is: read from outside, while the job runs or is down.

It writes nothing and locks nothing.

Read `read`, `waiting` (what waits after one batch), `due_histogram`, `input_lag`, `formats` (JSON and tables).

Everything is as of the last committed batch: its state by Spark's state data source, the buckets of batches up to it,
the offsets that it read. A bucket that a later batch has sealed is left out, since its messages still count in that
state.

Due times of mutable buckets are exact to the millisecond. A segment between two borders of the histogram counts as a
whole. If a border falls inside a segment, the index's counts for each time slot are read, without the offsets: their
column is pruned. A slot that a border cuts is estimated. Of a segment that is delivered in part, the one chunk is read
that reaches over the cutoff.
"""
