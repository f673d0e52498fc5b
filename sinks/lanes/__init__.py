"""The lanes of forwarders: who owns one, what its owner has taken, and the terms by which forwarders take.

The input partitions are divided among lanes (`state.lanes`). Each lane has a partition of the claims topic. Its owner
writes there, in one transaction with the ready chunks that it hands over to the near log, how far it has decided and
what it has taken. A new owner fences the earlier one, and goes on from that one's newest claim.

Read `writer` (the transactional producer of an owner), `terms` (what forwarders go by), `opening` (beginning and ending
the work of all forwarders), `claims_search` (where needed claims begin), `claims_reader` (following them, as the job
does), `deletion` (of claims that nobody needs).
"""
