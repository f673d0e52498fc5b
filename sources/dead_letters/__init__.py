"""Reading dead letters, and how far they are resent.

This package sends nothing; `sinks.resender` does, and `streaming.operations.resend` joins both.

Read `letter` (a dead letter as values), `reader`, and `position` (how Kafka stores what is resent).

A resend takes these steps:

1. Fence an earlier run, then read the positions.
2. Read the dead-letter topic up to its end at the start of the command.
3. Check each changed record with `sources.intake.accept`, as the job will.
4. Send the records in a transaction. It also commits, for a consumer group, an offset below which all letters are done.
   The text that Kafka stores with that offset has a bitmap of the letters done after it, since a choice by error code
   leaves gaps.
"""
