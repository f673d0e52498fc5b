"""The message-id index: which ids wait, and in which time slot each is due, built from metadata alone.

It holds no messages, and follows Pulsar's TimeBucket (PR 23611). `status`, `repair` and batches with requests read its
stored form. Only `rebuild` reads all of it into memory, to take up nothing twice.

Read `message_index`, then `source_pages` and `slot_page` (the compact form of ids), then `due_counts` (counts without
ids), `locate` (finding some ids in the stored form), and `offset_bitmaps` (large sets of ids).

Stored form: for each time slot and input partition, a segment's entries have the number of messages due in it, and
their offsets as a Roaring bitmap. The precision is stored with the entries. It is the precision of the batch that
sealed them, or of the merge. One table may hold several precisions, and an index of the whole table has the coarsest.

In memory: TimeBucket (slot -> source -> bitmap) spreads the ids of one source over a bitmap for each slot. This index
instead keeps the ids of a source in Roaring bitmaps by offset, page by page. The slots are stored next to them in
offset order, packed into as few bits as the page needs. That takes fewer bytes, above all where due times are in no
order (`python -m benchmarks index`).
"""
