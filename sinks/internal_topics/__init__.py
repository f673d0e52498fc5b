"""The service's own topics: the lease, and the progress of each shard. Compacted; only the service writes to them.

The records are defined by `state.checkpoint.progress` (markers) and `lease_record`.

Read `lease_record`, `lease` (holding it), `progress` (announcing a checkpoint, reading markers), `newest_record`.
"""
