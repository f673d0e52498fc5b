"""Getting in: records of Kafka become scheduled messages, and when and where each goes is decided once.

Nothing waits here; what waits lives in `state`. This package does not know `sinks`.

Read `intake` (the job's way in), then `dead_letters` (what could not be scheduled), `publisher` and `subscriber` (the
command line's clients).
"""
