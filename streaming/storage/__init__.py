"""The storage beneath `storage.path`: where its parts lie, whether it can be written, and why it failed.

It reads and writes no message.

Read `paths`, `checks`, `failures` (from Spark's words to an error), `unreadable_bucket`.
"""
