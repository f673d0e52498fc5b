"""The job's input: reads the input topics, accepts each record, and moves the watermark.

This package decides when and where a message goes, and holds no messages. All modules except `kafka_reader`, `clock`,
`consumed` and `stamp_check` are pure.

Read `kafka_reader`, `taken` (records that forwarders have taken), `accept` (a table of records becomes a table of
messages), `near` (messages that a forwarder accepts), `consumed` (the table of records that a forwarder has read),
`due_times` (when each is due), `schedule` (one delay header), `presets` and `preset_headers` (headers of other
schedulers), `accepted` (messages and their requests), `cancels` (requests to cancel), `replacements` (messages that
replace others), `names` (names of messages), `admission` (refusing messages when too many wait), `envelopes`
(schedulers that write a message's own key into headers), `expiry` (when a message expires), `repeats` (messages that
repeat), `header_columns`, `header_case` (names in the wrong case), `stubs` (the replacement for a record that is too
large to be carried), `partitioner` (Kafka's partitioner for keys), `grouping` (which group of the state stage takes a
message), `request_grouping` (which group gets a request), `clock` (moves the watermark), `schedule_headers` (turns
`--after 10s` into headers), `stamp_check` (finds timestamps that Spark cannot read).
"""
