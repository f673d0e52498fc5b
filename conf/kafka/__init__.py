"""How Kafka clients are opened: one `[kafka]` section for three client libraries.

This package writes no record: `sources`, `sinks` and `streaming` use the producers and consumers.

Read `options` (the section translated for each client), `option_names` (which client knows which name), `jaas`
(logins of the Java client), `oauthbearer` (logins by tokens) and `tokens` (fetching them for kafka-python), `tls`
(certificates and keys), `client_properties` (a file of Kafka's own tools), `wrong_option` (the error for a value),
`clients` (opening clients of librdkafka), `client_log` (what these say), `read_up_to` (records below known offsets),
`headers` (of a record that one has read),
`contact` (why a secured broker refuses a client), `rights` (what the login may not do), `error_codes` (what an error
concerns), `repeated_commit` (which transactional producer must be replaced).
"""
