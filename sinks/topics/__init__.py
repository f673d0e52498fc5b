"""The topics that a job needs: what they must be like, making them, and what they take.

It moves no record.

Read `topics` (making and checking), `limits` (which records a topic takes), `admin_client`.
"""
