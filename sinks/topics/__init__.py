"""The topics that a job needs: creates and checks them, and reads their limits. It moves no records.

Read `roles` (which topics, and in which form), `topics` (creating and checking), `internal_form` (the form of internal
topics), `partitions` and `input_ends` (partitions and offsets), `record_protection` (so that no record stops the job),
`limits` (which records a topic accepts), `topic_ids`, `admin_client`.
"""
