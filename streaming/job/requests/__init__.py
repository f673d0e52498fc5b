"""Cancels, replacements, names, delivery at once: the decision of a batch with requests, and the facts it needs.

The requests of a batch come with the output of its state stage, which has taken out the messages that it found. The
desk looks the names up, so that each request is for an id. It collects the facts about each id, and lets one function
without I/O decide. The batch stores the decision, and stages the answers like messages.

Read `desk` (the steps), `names` (which message has a name), `search` (looks for a message; `waiting` is the result, and
`chunk_reading` reads the chunks), `outcomes` (the result for each message), `decision` (all cases), `answers` (with
their reasons) and `moved_rows` (messages with other due times). Then read the sources of the facts: `sealed_ids` (where
a message is sealed), `stored_ids` (which messages are cancelled, or have a name) and `recalled` (messages that release
processes have recalled; `recalled_log` reads that topic, and `recalled_rows` keeps it). All of these keep their data in
files on the local disk (`local_file`), most of them in `runs`.
"""
