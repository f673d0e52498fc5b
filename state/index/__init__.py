"""The message-id index: which ids wait, and when each is due, to a precision, from metadata alone.

It holds no message, and no batch needs it: `status`, `repair` and `rebuild` do. After Pulsar's TimeBucket (PR 23611).

Read `message_index`, then `source_pages` and `slot_page` (how ids are kept small), then `due_counts` (counts without
ids).
"""
