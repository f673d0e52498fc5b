"""The Java side: where Java is, which jars there are, and the class archive that makes starts faster.

It starts no Spark. `spark.xml` and `broker.xml` list the jars for Ivy; the two `.properties` files configure Java's
logs.

Read `jars`, then `cds_archive`.
"""
