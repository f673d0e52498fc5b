"""Dead letters on their way back: reading them, and how far they are resent.

It sends nothing; `sinks.resender` does, and `streaming.operations.resend` joins both.

Read `letter` (a dead letter as values), `reader`, `position` (how Kafka keeps what is resent).

The dead-letter topic is read up to where it ended at the start. `sources.intake.accept` says what the job would say
of each changed record. The transaction that resends records also commits, for a consumer group, an offset below which
all is done, and beside it, as the text that Kafka keeps with an offset, a bitmap of what is done behind it: a choice
by error code leaves gaps. A new run fences an earlier one before it reads the positions.
"""
