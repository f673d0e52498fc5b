"""Operations on a stopped job: `rescale`, `rebuild`, `repair`. And `resend`, for its dead letters.

Each command can be cut off at any point and run again. The running job (`streaming.job`) does not depend on this
package.

Read `rescale` and `rebuild` (a new checkpoint), with `interrupted_rest` (of an earlier try), `reread` (from which
offsets on), `table_contents`, `rest` (which records are accepted again), `moved` and `schedules`. Then `repair` with
`corruption` (damaged files), `ready_log` (a ready topic that lost records), `resend` with `resend_check`.

`repair` reads the whole table and skips what is damaged. It compares the messages that it finds with the metadata and
with the table's log, and replaces whole parts of the table, metadata included, in one commit. A part is a Delta
partition: Delta replaces it without reading its files. With a condition on another column, Delta would read them.

`rebuild` makes the message-id index of one table version from metadata alone, as a stream of entries.
"""
