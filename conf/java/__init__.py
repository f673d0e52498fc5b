"""The Java side: finding Java, fetching jars, and the class archive that makes starts faster.

This package starts no Spark. `spark.xml`, `broker.xml` and `s3.xml` list the jars for Ivy, the `.sha256` files their
digests; the `.properties` files configure the logs of Java.

Read `jars`, `jar_lock`, then `cds_archive`.
"""
