"""The command line, one module for each command: it parses arguments, calls the service and prints; it decides nothing.

Read `app` (the list of commands), `options` (shared by all commands), `members` (shared by `release` and
`forward`), then the command that you look for.
"""
