"""The one place that says how a Kafka client is opened: one `[kafka]` section for three clients.

It moves no record: producers and consumers are used in `sources`, `sinks` and `streaming`.

Read `options` (the section in each client's words), `option_names` (which client knows which name), `jaas` (user
names and passwords for Java's client), `clients` (making clients of librdkafka), `contact` (why a secured broker
refuses).
"""
