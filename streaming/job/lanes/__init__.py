"""What the job does with the lanes of forwarders: a batch leaves out the records that they have taken.

Read `lane_start` (opens and closes the lanes), `claim_watch` (what forwarders have taken) and `old_claims` (which
nobody needs).
"""
