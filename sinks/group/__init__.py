"""The consumer groups that divide the work, shards or lanes, between their members.

A group decides who should do a part of the work; fencing decides who can. This package knows the membership, but not
the work.

Read `groups` (which there are), `member` (a process in its group), `refusals` (what keeps it out), `members` (who is in
it, and who should not be), `parts` (the threads that do its part of the work).

Membership is static, so that a process that is restarted under its name has its parts at once. The group's consumer
reads nothing: the owner of a part reads for itself.

If two processes have the same name, the later one fences the earlier one in the group, and the earlier one ends. But a
process may also fence itself: a broker that hangs while the process joins may take its second try for another process.
So a fenced process joins again, once. If there are two processes, it is fenced once more, and ends.
"""
