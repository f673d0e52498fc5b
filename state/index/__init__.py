"""The message-id index: which ids wait, and when each is due, to a precision, from metadata alone.

It holds no message, and no batch needs it: `status`, `repair` and `rebuild` do. After Pulsar's TimeBucket (PR 23611).

Read `message_index`, then `source_pages` and `slot_page` (how ids are kept small), then `due_counts` (counts without
ids).

Stored, a segment's entries say for each time slot (2^`index.precision_bits` ms) and each input partition how many
messages are due in it, and their offsets as a Roaring bitmap. The precision stands beside the entries: it is that of
the batch that sealed them, or of the merge. One table may hold several, and an index of all of it has the coarsest.

In memory it is no TimeBucket (slot -> source -> bitmap), which spreads the ids of one source over as many bitmaps as
there are slots. It keeps the ids of a source in Roaring bitmaps by offset, page by page, and beside them the slots in
offset order, packed to as few bits as the page needs. That takes fewer bytes, above all where due times are in no order
(`benchmarks/README.md`).
"""
