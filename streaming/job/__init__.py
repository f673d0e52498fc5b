"""The running job: one query, which runs one batch after the other and is watched until it ends.

It depends on no command, and starts no operation.

Read `query` (how the parts are joined) and `batch` (the steps of one batch). Then read `plan` (what the steps go by),
the package `steps`, and what these use: the packages `inputs` (a batch's records), `lanes` (what forwarders have
taken), `sealed` (messages of earlier batches) and `requests` (cancels, replacements and names). Last read `service`
(the start), `start_wait` (a start without a broker) and `unfinished_batch` (what was cut off before), `occurring`
(messages that repeat), `gate` (which batches still run), `query_watch` (from the start to the end) with the package
`watches`, and `query_failure` (the error of the query).

The clock. Only the tick source (`sources.intake.clock`) moves the watermark. It gives one row for each batch, whose
event time is the cutoff of the next batch: the present time plus the horizon, or less if more is due before than
`window.max_bytes` allows (`PrefetchWindow.next_cutoff`). Message rows have a null event time: it does not move the
watermark, and Spark does not drop such a row as late. A batch's time and watermark are in Spark's offset log, so a
replayed batch sees the same clock and the same cutoff. The cutoff is chosen while the batch before runs; the horizon is
long enough for that lag not to matter. A batch hands over the messages due in [previous cutoff, cutoff), and those that
were due below when it accepted them. It never waits for a due time: the release processes do.

A start. The batch that was cut off is replayed with its own cutoff. The first new batch would have a cutoff of before
the stop too, seal what fell due meanwhile, and leave it to the next batch to load and hand over. So a replay chooses
the next cutoff by the present clock, and not by its own. If nothing is to be replayed, Spark would plan with the
watermark that it recorded when it committed the last batch: the start raises that (`BatchRunner.catch_up`). No batch
has used it yet, so a crash leaves either value, and both are right.

The clock set back. By up to a minute, the job waits for it. By more, the job ends with `clock-behind`: the cutoff
would stand still, possibly for hours, until the clock shows the time of the newest batch again. That batch, in the
offset log, has the time that the clock showed before, so a start compares too.

The clock far ahead. Cutoffs never go back, so no batch follows a clock that is more than `clock.skew_limit` ahead of
the broker's, which stamps the heartbeats of the lease. The job ends with `clock-ahead` before such a batch has run. It
is in the offset log, and would run by that clock again: a start whose own clock is right takes it out of there.

The cost of a batch. A batch avoids calls from Python to Java: it passes expressions as text, and looks names up once.
Each name that Python looks up in the JVM, and each Java exception that pyspark classifies, costs Java a search through
all jars. `query.recentProgress` alone took most of a core.
"""
