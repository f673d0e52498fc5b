"""The ready log: the messages that batches stage for the release.

It is an internal topic with a partition for each shard. A record is a *ready chunk*: messages in delivery order, as
Arrow IPC bytes. The chunks of a shard and batch are written in transactions with the batch's marker, so that a replay
stages each message once. Staging never waits for a due time: `sinks.release` does.

Read `chunk` (the record), `stage` (one shard's batch), `writer` (its transactional producer), `writer_host` (the
process that keeps the writers), `task` (what Spark calls).
"""
