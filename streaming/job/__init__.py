"""The running job: one query, one batch after the other, watched until it ends.

It knows no command, and starts no operation.

Read `query` (how the parts are joined), `batch` (the steps of one batch), `prefetch_window` (sealed messages, loaded
ahead of need), `service` (start, watch, end), `clock_watch` and `outage_watch`, `input_loss` (records that were
deleted unread).

The clock. The watermark comes from a tick source alone (`sources.intake.clock`): one row a batch, whose event time is
the batch's own time plus a lookahead. Message rows carry a null event time, which neither moves the watermark nor is
dropped for being late. The batch's time is in Spark's offset log, so a replayed batch sees the same clock. The cutoff
of a batch is its watermark, which is the clock of the batch before; the lookahead takes that lag out of the lateness.
A batch delivers [previous cutoff, cutoff), and what was already due when it was accepted.

The wall clock only delays. A transaction opens when its first message is due within a second, so that the broker does
not end it for its age, and commits when its last one is due. If the clock is set back between the two, the writer
aborts it and opens another later. The job waits for a clock that was set back by up to a minute; by more, it ends
with `clock-behind` before Spark waits for hours, which Spark does before the next trigger. The newest batch in the
offset log records what the clock showed before, at a start as well.

What a batch costs. Nothing in a batch asks pyspark what can be asked in text or once: each name that Python looks up in
the JVM, and each Java exception that it classifies, costs Java a search through all jars. `query.recentProgress` alone
took most of a core.
"""
