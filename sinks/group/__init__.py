"""The consumer groups that divide the work, shards or lanes, between their members.

A group decides who should do a part of the work; fencing decides who can. This package knows the membership, and
nothing of the work.

Read `groups` (which there are), `member` (a process in its group), `refusals` (what keeps it out), `members` (who is in
it, and who should not be), `parts` (the threads that do its part of the work).

Membership is static, so that a process that is restarted under its name has its parts at once. The group's consumer
reads nothing: who has a part reads for itself.

Two processes with one name. The later one fences the earlier one in the group, which ends. But a process also fences
itself: a broker that hangs while it joins may take its second try for another process. So a process that is fenced
joins again, once: if there are two, it is fenced once more, and ends.
"""
