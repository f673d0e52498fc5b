"""The table of sealed buckets in Delta: the commits of batches, merges and joins, and reading the table.

Read `delta_store` (the Delta table) and `table_writers` (who may commit), `bucket_table` (seals, segments, chunks and
ids), `segment_figures` (counts of its messages), `merge_commits` and `join_commits` (what maintenance stores), and then
`chunk_plans` (reading chunks in order), `packed_rows` (how ids travel to the driver) and `task_counts` (what tasks
report).
"""
