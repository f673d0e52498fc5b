"""The topics that a job needs: creates and checks them, and reads their limits. It moves no records.

Read `topics` (creating and checking), `record_protection` (so that no record stops the job), `limits` (which records a
topic accepts), `topic_ids`, `admin_client`.
"""
