"""The command line, one file for each command: arguments, calls and words, and no decisions.

Read `app` (the list of commands), `options` (what all share), then the command that you look for.
"""
