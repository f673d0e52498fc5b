"""Forwarders: processes without Spark that hand over what is due soon, so that it waits for no batch.

A forwarder reads the input topics as they grow, and takes messages by the same rules as a batch
(`sources.intake.near`). What it takes, it writes to the near log, with a claim in the same transaction (`sinks.lanes`).
All that no forwarder has claimed is the batches' work: so forwarders may be dead or paused at any time.

Read `process` (a member of the group between whose members Kafka divides the lanes), `engine` (the loop of one lane),
`lane_reader` (its consumer), `lane` (what its owner has read and not claimed yet: pure), `inputs` (which input
partitions there are), `counts`.
"""
