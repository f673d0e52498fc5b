"""Sealed messages, as batches use them: loaded ahead of need, with the ids that earlier batches have stored.

Read `prefetch_window` (sealed messages, loaded ahead of need), `piece` (a range of them) and `loaded_cancels` (which of
these were cancelled since), `look_ahead` (reads the table in the background).
"""
