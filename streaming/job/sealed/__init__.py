"""What batches know of sealed messages: they load them ahead of need, and find what earlier batches have stored.

Read `prefetch_window` (sealed messages, loaded ahead of need), `piece` (a range of them) and `loaded_cancels` (which of
these are cancelled since), `look_ahead` (what is read of the table next to the batches).
"""
