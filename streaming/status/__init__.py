"""What waits, what is due when, and how far the job is: read from outside, while the job runs or is down.

It writes nothing and locks nothing.

Read `read`, `waiting` (what waits after one batch), `due_histogram`, `input_lag`, `formats` (JSON and tables).
"""
