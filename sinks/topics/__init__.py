"""The topics that a job needs: creates and checks them, and reads their limits. It moves no records.

Read `roles` (which topics, and in which form), `topics` (creating and checking), `internal_form` (what internal topics
must be like), `partitions` and `input_ends` (what there is), `record_protection` (so that no record stops the job),
`limits` (which records a topic accepts), `topic_ids`, `admin_client`.
"""
