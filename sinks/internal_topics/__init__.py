"""The service's own topics: the lease, and the progress of each shard. Compacted, and written by the service alone.

What the records mean is decided elsewhere: a marker in `state.checkpoint.progress`, the lease in `lease_record`.

Read `lease_record`, `lease` (holding it), `progress` (announcing a checkpoint, reading markers), `newest_record`.
"""
