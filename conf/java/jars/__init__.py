"""The jars that Java needs in addition to the jars of pyspark: the list, the folder and the download.

The `.xml` files list them for Ivy, by line of Spark. The `.sha256` files contain their digests.

Read `jar_lock` (the lists), `installed` (where the jars are), `ivy` and `mirror` (downloads), `fetch` (what `delayline
jars` does), then `relock` (after a change of a list).
"""
