"""How Kafka clients are opened: one `[kafka]` section for three client libraries.

This package moves no record: `sources`, `sinks` and `streaming` use the producers and consumers.

Read `options` (the section translated for each client), `option_names` (which client knows which name), `jaas` (user
names and passwords for the Java client), `clients` (opening clients of librdkafka), `contact` (why a secured broker
refuses a client).
"""
