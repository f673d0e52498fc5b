"""The running job: one query, one batch after the other, watched until it ends.

It knows no command, and starts no operation.

Read `query` (how the parts are joined), `batch` (the steps of one batch), `prefetch_window` (sealed messages, loaded
ahead of need), `service` (start, watch, end), `clock_watch` and `outage_watch`, `input_loss` (records that were
deleted unread).
"""
