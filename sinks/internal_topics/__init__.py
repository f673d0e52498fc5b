"""The service's own compacted topics: the lease, and which messages of each shard are staged, released and recalled.

Only the service writes to them.

The records are defined by `state.checkpoint.progress` (markers), `state.recalled` and `lease_record`.

Read `lease_record`, `lease` (holding it), `progress` (announcing a checkpoint, reading markers), `position` (of the
release) and `position_reader`, `recalled_writer` (records that the job forgets), `newest_record`, `transactional_ids`
(of all producers), `log_producer` (writing all or nothing), `broker_retry` (patience in an outage).
"""
