"""Forwarders: processes without Spark that stage messages that are due soon, so that these do not wait for a batch.

A forwarder reads the input topics as they grow, and takes messages by the same rules as a batch
(`sources.intake.near`). It writes these messages to the near log, with a claim in the same transaction (`sinks.lanes`).
Batches take all messages that no forwarder has claimed, so forwarders may be dead or paused at any time.

Read `process` (a member of the consumer group that divides the lanes), `engine` (the loop of one lane), `lane_reader`
(its consumer), `lane` (pure: the records that its owner has read and not claimed yet), `inputs` (which input partitions
exist), `clock` (is this host's clock far ahead?), `counts`.
"""
