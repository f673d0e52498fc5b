"""Campaigns: random faults under load for minutes or hours; the judge checks all delivered messages.

Read `campaign` first (faults of a job on a cluster, and of its broker), then `contention` (several drivers and release
processes of one application), `load`, `names`, `schedules` and `schedule_plan` (the published records) and `faults`
(which fault strikes, and when).
"""
