"""What every other package may lean on: settings, durations, errors, failpoints. It imports no other package.

No Spark and no message in here. Only `conf.kafka` opens Kafka clients, and only `conf.java` starts Java.

Read `settings`, then `load` (where values come from), then `errors` (the tree, with its codes); `durations`,
`logs`, `end_signals` and `failpoints` as needed, then the packages `kafka` and `java`.
"""
