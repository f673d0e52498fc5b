"""Schedules that repeat: rules in time zones, and which occurrences a batch stages.

Read `zones` (time zones of the package tzdata), `rule` (when something comes again: an interval, or a cron expression
in a zone), `schedule` (a rule with its limits, as it travels with the waiting occurrence, and the occurrences that a
batch stages), `waiting` (a message that repeats, as it waits), `occurrences` (which occurrences a batch stages, and its
rows) and `left` (which occurrences wait if a checkpoint is lost).

Pure: no clock is read here. docs/internals/decisions/schedules.md has the reasons.
"""
