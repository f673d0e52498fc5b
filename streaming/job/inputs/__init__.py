"""What batches know of the input topics beside their records.

Read `arrivals` (when the next batch begins), `batch_size` (how many records it may read), `admission` (what a batch
refuses because too much waits), `input_watch` (whether the topics are still the same), `input_loss` (records that were
deleted unread), `unreadable_stamps` (records that Spark cannot read).
"""
