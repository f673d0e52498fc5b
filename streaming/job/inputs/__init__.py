"""The knowledge of batches about the input topics, apart from their records.

Read `arrivals` (when the next batch begins), `batch_size` (how many records it may read), `admission` (records that a
batch refuses because too many messages wait), `input_watch` (whether the topics are still the same), `input_loss`
(records that were deleted unread), `unreadable_stamps` (records that Spark cannot read).
"""
