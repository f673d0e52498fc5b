"""Guards the log of the table of sealed buckets on S3 against a process that was cut off while it wrote an entry.

Delta's `S3SingleDriverLogStore` looks whether an entry is there, and then uploads it. Hadoop 3.4.1 cannot upload on the
condition that nothing is there. So a driver that stalls in between replaces what its successor has written under that
number. It uploads one entry at a time, the one after the newest that it knows: the first that its successor writes.
"""

from __future__ import annotations

import logging

from pyspark.sql import SparkSession

from conf.errors import LogEntryReplaced
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.merge_commits import fence_merges, fences_merges
from streaming.storage.folder import Folder
from streaming.storage.paths import is_on_s3, storage_path

log = logging.getLogger(__name__)

_COPIES = "log-copies"
_REPLACED = "a process without the lease replaced"


def guarded_log(spark: SparkSession, settings: Settings) -> GuardedLog:
    """Return the guard of the table's log for the storage of `settings`."""
    return GuardedLog(spark, storage_path(settings), needed=is_on_s3(settings))


class GuardedLog:
    """Keeps copies of the entries that an earlier process may replace, and puts them back.

    On a file system that can create a file only if it does not exist yet, this does nothing.
    """

    def __init__(self, spark: SparkSession, storage: str, needed: bool) -> None:
        """Take the path of the job's storage, and whether a process can replace files there. Nothing is read yet."""
        self._needed = needed
        self._log = Folder(spark, f"{storage}/buckets/_delta_log")
        self._copies = Folder(spark, f"{storage}/{_COPIES}")
        # The newest version that `restore` has found.
        self._found = -1
        # By name, the entries as this process has written or found them.
        self._kept: dict[str, str] = {}

    def has_log(self) -> bool:
        """Return whether the table has a log. This does not read it."""
        return bool(self._log.names())

    def restore(self, store: BucketTable, keep_later: bool = False) -> None:
        """Put back each entry that is not as an earlier process has kept it. Call this before the log is read.

        A missing entry is lost if it is the newest by its checksum, which Delta writes next to each entry.
        `keep_later` keeps the copies of entries after the newest, for a table that may be an older copy. New entries
        would get their numbers, so call `take_over` before anything is written.
        """
        if not self._needed:
            return
        names = set(self._log.names())
        newest = max((name for name in names if name.endswith(".json")), default="")
        for name in self._copies.names():
            entry, copy = self._log.read(name), self._copies.read(name)
            is_lost = entry is None and name > newest and f"{name.removesuffix('json')}crc" in names
            if entry is None and not is_lost:
                # Delta has cleaned the log, and reads it from a later entry on. Or the table goes on without the entry.
                if not keep_later or name < newest:
                    self._copies.delete(name)
            elif copy is not None:
                if copy != entry:
                    what = "was lost" if is_lost else _REPLACED
                    self._put_back(name, copy, what)
                self._kept[name] = copy
        self._found = store.newest_version() if store.exists() else -1

    def take_over(self, store: BucketTable, merge_token: int) -> None:
        """Fence the merges of earlier processes, and keep the entries since `restore`, without copies of later ones.

        Call this before the table is read.
        Raises LogEntryReplaced if the fence itself is replaced already. The other entry then stays.
        """
        if self._needed:
            # Before the first entry that gets one of these numbers.
            for name in self._copies.names():
                if name > f"{self._found:020d}.json" and name not in self._kept:
                    self._copies.delete(name)
        fence_merges(store, merge_token)
        if not self._needed:
            return
        is_fenced = False
        for version in range(max(0, self._found), store.version() + 1):
            name = f"{version:020d}.json"
            entry = self._log.read(name)
            if entry is not None:
                self._copies.write(name, entry)
                self._kept[name] = entry
                is_fenced |= fences_merges(entry, merge_token)
        if not is_fenced:
            raise LogEntryReplaced(
                f"an earlier process replaced the entry of {self._log.path} with which this process takes "
                "over. No later commit builds on it. Run the same command again"
            )
        # An entry before the fence may be replaced too. Only the kept entries count.
        store.forget_log()

    def check(self) -> None:
        """Raise LogEntryReplaced if an entry that this process keeps was replaced. It is put back.

        If nothing is raised, all that was read of the table before this call was committed by this process or its
        predecessors.
        """
        replaced = []
        for name, kept in list(self._kept.items()):
            entry = self._log.read(name)
            if entry is None:
                del self._kept[name]
            elif entry != kept:
                self._put_back(name, kept)
                replaced.append(name)
        if replaced:
            raise LogEntryReplaced(
                f"a process that had lost the lease replaced {', '.join(replaced)} in {self._log.path}. The "
                "entry was restored, and no commit builds on the replacement. Run the same command again"
            )

    def _put_back(self, name: str, text: str, what: str = _REPLACED) -> None:
        log.warning("restoring %s/%s, which %s", self._log.path, name, what)
        self._log.write(name, text)
