"""The commits of merges: slices of a merged bucket that are not read yet, and the commit that makes it live."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pyspark.sql import DataFrame

from conf.errors import ApplicationHeld
from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.delta_store import WriterVersion
from state.buckets.parts import MergeName, chunks_of, marker_of, metadata_of

# The writer of merges: with its fencing token as the version, Delta refuses a merge of an earlier holder of the lease.
_MERGES = "merges"
_NO_PARTITION = "none"
# Merges that one process may finish.
_MERGE_NUMBERS = 1 << 24


def merge_token(store: BucketTable, fencing_token: int) -> int:
    """Return the token for the merges of a process whose lease has `fencing_token`.

    It is `fencing_token` itself, unless the lease topic was recreated and counts from 1 again. In that case it is the
    token after the newest one in the table.
    """
    newest = store.newest_of(_MERGES)
    return fencing_token if newest is None else max(fencing_token, newest // _MERGE_NUMBERS + 1)


def fence_merges(store: BucketTable, token: int) -> None:
    """Prevent merges with a lower token than `token` from finishing.

    Call it before the metadata is read: the process that held the lease before may be paused, and would replace
    buckets after this process has read their metadata.
    """
    nothing = store.spark.sql("SELECT '' AS part, 0L AS bucket WHERE false")
    store.overwrite([_NO_PARTITION], nothing, _merge_version(token, 0))


def append_part(store: BucketTable, rows: DataFrame) -> None:
    """Store a part of a merged bucket, in one commit. It is not live before `commit_merge`."""
    store.before_change()
    store.append_rows(rows)


def commit_merge(store: BucketTable, name: MergeName, replaced: Iterable[str], number: int) -> None:
    """Make the parts of the merged bucket `name` live, and remove the parts `replaced`, in one commit.

    Reads no row. `number` counts the finished merges of this process from 1. No call may begin before the call with
    the previous number has ended: Delta would take one of the two for a merge of an earlier process. Raises
    ApplicationHeld if another process has taken over.
    """
    parts = set(replaced)
    partitions = {name.live, *map(chunks_of, parts), *map(metadata_of, parts), *filter(None, map(marker_of, parts))}
    marker = store.spark.sql(f"SELECT '{name.live}' AS part, {name.last}L AS bucket")
    store.overwrite(partitions, marker, _merge_version(name.token, number))
    if name.live not in store.markers():
        raise ApplicationHeld(
            f"another process took over while buckets {name.first} to {name.last} of {store.path} were being merged"
        )


def fences_merges(entry: str, token: int) -> bool:
    """Return whether an entry of the table's log was written by `fence_merges` with `token`."""
    fence = _merge_version(token, 0)
    writers = (json.loads(line).get("txn", {}) for line in entry.split("\n") if line)
    return any(each.get("appId") == fence.writer and each["version"] == fence.version for each in writers)


def _merge_version(token: int, number: int) -> WriterVersion:
    return WriterVersion(_MERGES, token * _MERGE_NUMBERS + number)
