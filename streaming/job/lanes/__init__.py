"""The lanes of forwarders, as the job uses them: a batch leaves out the records that forwarders have taken.

Read `lane_start` (opens and closes the lanes), `claim_watch` (records that forwarders have taken) and `old_claims`
(claims that nobody needs).
"""
