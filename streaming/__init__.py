"""Putting it together: the session, the query, one batch's steps, recovery, upkeep, and the command line.

Start reading at `query` (how the parts are joined) and `batch` (what one batch does).
"""
