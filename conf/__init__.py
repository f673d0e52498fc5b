"""The base of every other package: settings, secrets, durations, errors, failpoints. It imports no other package.

No Spark and no message in here. Only `conf.kafka` opens Kafka clients, and only `conf.java` starts Java.

Read `settings`, `sections` and `topic_tables` (each setting), `setting_groups` (who sets which), `setting_types` and
`setting_checks` (how one value is checked, and several together), `spark_options` (which of Spark's are refused),
`load` (where values come from), `errors` and `rejected` (the tree, with its codes); `secrets`, `durations`, `instants`,
`printable`, `logs`, `end_signals`, `failpoints` and `process_tree` as needed; then the packages `kafka` and `java`.
"""
