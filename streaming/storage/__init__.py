"""The storage under `storage.path`: where its parts are, whether it can be written, and why it failed.

It does not read or write messages.

Read `paths`, `folder` (small files on any file system), `owner` (which application the storage belongs to),
`guarded_log` (the table's log on S3), `checks`, `failures` (from Spark's error text to a Delayline error) and
`unreadable_bucket`.
"""
