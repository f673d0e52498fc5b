"""The Java side: finding Java, fetching jars, and the class archive that makes starts faster.

This package starts no Spark. The `.xml` files list the jars for Ivy, by line of Spark, the `.sha256` files their
digests; the `.properties` files configure the logs of Java.

Read `spark_line`, `jars`, `jar_lock`, `mirror`, then `cds_archive`.
"""
