"""The storage under `storage.path`: where its parts are, whether it can be written, and why it failed.

It reads and writes no message.

Read `paths`, `folder` (small files on any file system), `owner` (whose storage it is), `guarded_log` (the table's log
on S3), `checks`, `failures` (from Spark's error text to a Delayline error), `unreadable_bucket`.
"""
