"""The checkpoint as files: Spark's logs, Delayline's own beside them, recovery, and handing over to another.

What the files say, as values, is in `state.checkpoint`.

Read `checkpoint`, `logs` (Spark's two), `recovery` (what a start goes on from), `handover` (one checkpoint follows
another).

A checkpoint begins with its origin (`state.checkpoint.origin`): id and generation, the number of shards, the input
offsets and the cutoff that it goes on from, and the number of its first bucket, so that no bucket of another checkpoint
has the same. What the checkpoint before had accepted is delivered or sealed at that moment.

Two operations end in a handover. `rescale` replays the batch that was cut off, retires the checkpoint and seals the
state. `rebuild` does without the checkpoint (`state.checkpoint.delivered`). Both then seal, announce the origin in the
progress topic in one transaction, and rename the new checkpoint into its place. A crash between any two steps is met by
running the command again. A job with an older checkpoint finds the newer origin in the progress topic, and stops.

Spark's logs are read at a start before Spark reads them: it would plan anew what is missing there.
"""
