"""Maintenance of sealed buckets beside the batches: delivered parts are deleted, small buckets merged.

It changes only what committed batches have left, and never delays a batch by waiting for it.

Read `maintenance` (what is done when), then `merge`.
"""
