"""Cancels, replacements, names, delivery at once: what a batch with requests decides, and must know.

The requests of a batch come with the output of its state stage, which has taken out what it found. The desk looks the
names up, so that each asks for an id; finds out what is known of each id; and lets one function without I/O decide.
What is decided the batch stores, and hands the answers over as it does messages.

Read `desk` (the steps), `names` (which message has a name), `search` (where a message waits), `outcomes` (what became
of it), `decision` (all cases), `answers` (their reasons) and `moved_rows` (what is made due at once). Then what the
desk knows: `sealed_ids` (where a message is sealed), `stored_ids` (which messages are cancelled, or have a name) and
`recalled` (what release processes have recalled; `recalled_log` reads that topic, and `recalled_rows` keeps it). All of
that lies on the local disk, in `runs`.
"""
