"""The lanes of forwarders: who owns one, what its owner has taken, and the terms by which forwarders take.

The input partitions are divided among lanes (`state.lanes`). Each lane has a partition of the claims topic. A claim
says how far the owner has decided, and which records it has taken. The owner writes it in one transaction with the
ready chunks that it stages in the near log. A new owner fences the earlier one, and goes on from its newest claim.

Read `writer` (the transactional producer of an owner), `terms` (the terms of forwarders), `opening` (beginning and
ending the work of all forwarders), `claims_search` (where needed claims begin), `claims_reader` (following them, as the
job does), `deletion` (of claims that are not needed).
"""
