"""The jars that Java needs beside those of pyspark: which ones, where they are, and how they get there.

The `.xml` files list them for Ivy, by line of Spark, the `.sha256` files have their digests.

Read `jar_lock` (the lists), `installed` (where the jars are), `ivy` and `mirror` (downloads), `fetch` (what `delayline
jars` does), then `relock` (after a change of a list).
"""
