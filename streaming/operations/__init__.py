"""What is done to a job that does not run: rescale, rebuild, repair; and resending its dead letters.

Each command can be cut off anywhere and run again. The running job (`streaming.job`) knows nothing of these.

Read `rescale` and `rebuild` (a new checkpoint), `repair` with `corruption` (damaged files), `resend`.

`repair` reads the whole table past its corruption, holds the messages found against metadata and log, and replaces
whole parts, metadata included, in one commit. Delta drops a part without reading its files, which a condition on
other columns would not do.

`rebuild` makes the whole message-id index of a table version from metadata alone, as a stream of entries.
"""
