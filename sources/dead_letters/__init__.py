"""Dead letters on their way back: reading them, and how far they are resent.

It sends nothing; `sinks.resender` does, and `streaming.operations.resend` joins both.

Read `letter` (a dead letter as values), `reader`, `position` (how Kafka keeps what is resent).
"""
