"""The running job: one query, which runs one batch after the other and is watched until it ends.

It depends on no command, and starts no operation.

Read `query` (how the parts are joined) and `batch` (the steps of one batch). Then read `plan` (the input of the steps),
the package `steps`, and the packages that these use: `inputs` (a batch's records), `lanes` (what forwarders have
taken), `sealed` (messages of earlier batches) and `requests` (cancels, replacements and names). Last read `service`
(the start), `start_wait` (a start without a broker) and `unfinished_batch` (the batch that was cut off), `occurring`
(messages that repeat), `gate` (which batches still run), `query_watch` (from the start to the end) with the package
`watches`, and `query_failure` (the error of the query).

The clock. Only the tick source (`sources.intake.clock`) moves the watermark. It gives one row for each batch. The event
time of that row is the cutoff of the next batch: the present time plus the horizon, or less if the messages due before
it exceed `window.max_bytes` (`PrefetchWindow.next_cutoff`). Message rows have a null event time. It does not move the
watermark, and Spark does not drop such rows as late. A batch's time and watermark are in Spark's offset log, so a
replayed batch sees the same clock and the same cutoff. The cutoff is chosen while the batch before runs; the horizon is
long enough for that lag not to matter. A batch stages the messages due in [previous cutoff, cutoff), and those that it
accepts with a due time below that range. It never waits for a due time. The release processes do.

A start. The batch that was cut off is replayed with its own cutoff. The first new batch would also have a cutoff from
before the stop. It would seal the messages that fell due meanwhile, and the next batch would have to load and stage
them. So a replay chooses the next cutoff by the present clock instead of its own. Without a batch to replay, Spark
would plan with the watermark that it recorded when it committed the last batch. The start raises that watermark
(`BatchRunner.catch_up`). No batch has used it yet, so a crash leaves either value, and both are right.

The clock set back. If it is at most a minute behind, the job waits. If it is further behind, the job ends with
`clock-behind`: the cutoff would stand still, possibly for hours, until the clock shows the time of the newest batch
again. The offset log has the time that the clock showed to that batch, so a start can compare too.

The clock far ahead. Cutoffs never go back, so no batch follows a clock that is more than `clock.skew_limit` ahead of
the broker's, which stamps the heartbeats of the lease. The job ends with `clock-ahead` before such a batch has run. The
batch is in the offset log, and a replay would run by that clock again. A start with a correct clock removes it from the
offset log.

The cost of a batch. A batch avoids calls from Python to Java: it passes expressions as text, and looks names up once.
Each name that Python looks up in the JVM, and each Java exception that pyspark classifies, costs Java a search through
all jars. `query.recentProgress` alone took most of a core.
"""
