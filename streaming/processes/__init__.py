"""Processes without Spark that a command starts and supervises: release processes, and forwarders.

Read `kinds` (the kinds of processes), `supervisor` (the command's side) with `child` (a process, as its supervisor has
it) and `restarts` (when it is started again), `orders` (the data sent to it), `supervised` (the program of such a
process), `member` (shared with processes that an operator starts), `meeting_place` (where a later command finds it),
`drain` (waiting until all staged messages are released).

The two sides share a socket. The command sends the settings through it, since a command line would show secrets, and
says when the process is to end. The process sends its error back. SIGTERM does not end it: a service manager sends
that to both. When the command is gone, the socket ends: the process, an orphan now, goes on for a while. A command that
is restarted meanwhile finds it at its `meeting_place`, and goes on with it if it does the same work: then no shard and
no lane changes hands, and no message is late.

**Orphans.** A forwarder goes on for a minute: a service manager has restarted a job by then. A release process goes on
for as long, so that forwarded messages go out, and then until no staged message is left, but for five minutes at
most. Without forwarders it ends as soon as nothing is left.

**Failures.** A process that is killed is started again at once. One that fails is started again after a pause that
grows. If a release process fails again and again, the command ends with its error: nothing goes out without it. A
forwarder is tried again and again: batches do its work meanwhile.
"""
