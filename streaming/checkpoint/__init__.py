"""The checkpoint as files: Spark's logs, Delayline's own files, recovery, and the switch to another checkpoint.

The values in these files are in `state.checkpoint`.

Read `checkpoint`, `logs` (Spark's two), `current` (which checkpoint it is), `recovery` (where a start continues),
`beginning` (of a new checkpoint), `refusals` (of an older one), `recreated_inputs` (input topics that were deleted and
created again), `switch_over` (one checkpoint follows another), `mutable_buckets` (what the state has after a batch).

A checkpoint begins with its origin (`state.checkpoint.origin`): its id and generation, the number of shards, the input
offsets and the cutoff at which it takes over, and the number of its first bucket, so that checkpoints never share
bucket numbers. At that moment, everything that the checkpoint before had accepted is staged or sealed.

Two operations end with a switch to a new checkpoint:

1. `rescale` replays the batch that was cut off, retires the checkpoint, and takes the waiting messages from its state.
   `rebuild` does without the old checkpoint, and finds the waiting messages by the markers
   (`state.checkpoint.staged`).
2. Both seal these messages, and announce the new origin in the progress topic in one transaction.
3. Both write the pointer to the new checkpoint. No checkpoint ever moves: an object store cannot rename a folder.

If a crash comes between two steps, run the command again. A job with an older checkpoint finds the newer origin in the
progress topic, and stops.

A start reads Spark's logs before Spark does, because Spark would plan a batch again if its entry was missing.
"""
