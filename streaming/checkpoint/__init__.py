"""The checkpoint as files: Spark's logs, Delayline's own beside them, recovery, and handing over to another.

What the files say, as values, is in `state.checkpoint`.

Read `checkpoint`, `logs` (Spark's two), `recovery` (what a start goes on from), `handover` (one checkpoint follows
another).
"""
