"""The Java side: finding Java, its jars, and the class archive that makes starts faster.

This package starts no Spark. The `.properties` files configure the logs of Java.

Read `spark_line`, `command` (finding Java), the package `jars`, then `cds_archive`.
"""
