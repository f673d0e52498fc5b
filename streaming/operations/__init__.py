"""What is done to a job that does not run: rescale, rebuild, repair; and resending its dead letters.

Each command can be cut off anywhere and run again. The running job (`streaming.job`) knows nothing of these.

Read `rescale` and `rebuild` (a new checkpoint), `repair` with `corruption` (damaged files), `resend`.
"""
