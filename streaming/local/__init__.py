"""A single Kafka node on this machine, run from jars: for the demo, the tests, and a first try.

The service itself does not use it.

Read `broker`, then `broker_properties` and `free_port`.
"""
