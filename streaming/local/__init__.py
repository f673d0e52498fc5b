"""One Kafka node on this machine, from jars alone: for the demo, the tests, and a first try.

No part of the service needs it.

Read `broker`, then `broker_properties`.
"""
