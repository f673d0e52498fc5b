"""Release processes that a command starts and supervises. They know Kafka and no Spark (`sinks.release`).

Read `supervisor` (the command's side), `orders` (what it sends), `supervised` (what such a process runs),
`meeting_place` (where a later command finds it), `drain` (waiting until all that is handed over is released).

The two sides share a socket. The command sends the settings through it, since a command line would show secrets, and
says when the process is to end. The process sends its error back. SIGTERM does not end it: a service manager sends
that to both. When the command is gone, the socket ends: the process, an orphan now, goes on until nothing is left
that was handed over. A command that is restarted meanwhile finds it at its `meeting_place`, and goes on with it if it
does the same work: then no shard changes hands, and no message is late.
"""
