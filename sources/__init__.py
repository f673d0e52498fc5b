"""Input: Kafka records become scheduled messages. When and where each message goes is decided here, once.

No message waits here; waiting messages are in `state`. This package does not import `sinks`.

Read `intake` (how the job reads its input), then `dead_letters` (records that could not be scheduled), `publisher`,
`subscriber` and `canceller` (the clients of the command line).
"""
