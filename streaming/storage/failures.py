"""Recognises failures of the storage in Spark's error text, and words the error: the place, the cause, what to do."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming import StreamingQuery

from conf.errors import BucketUnreadable, CheckpointUnreadable, DelaylineError, StorageFailed
from conf.settings import Settings
from streaming.storage.checks import free_space
from streaming.storage.paths import local_checkpoint, local_folder, storage_path

log = logging.getLogger(__name__)

# The remedy for a missing file of the checkpoint. Every error that names such a file ends with this.
CHECKPOINT_REMEDY = (
    "Put the newest checkpoint back completely. Or make a new one from the table, the input topics and the "
    "progress topic with `delayline rebuild --discard-checkpoint`"
)
# The remedy for a missing file of the table. Every error that names such a file ends with this.
TABLE_REMEDY = (
    "Put the file back from a backup. Without a backup, stop the job: `delayline repair` shows which "
    "messages are lost, and `delayline repair --skip` removes them from the table"
)
# The words of the operating system and of Java. To its user, an exceeded quota is a full disk.
_REFUSED = (
    ("No space left on device|Disk quota exceeded", "no space left", "written"),
    ("Read-only file system", "the file system is read-only", "written"),
    ("Permission denied|AccessDenied", "permission denied", "written or read"),
    ("Input/output error", "the device fails", "written or read"),
)
# The file that was being written, by names in Spark's traces. The first match counts. The last word is the folder below
# the storage; None means Spark's working folder.
_STEPS: tuple[tuple[str, str, str | None], ...] = (
    ("markMicroBatchStart", "the offset log", "offsets"),
    ("markMicroBatchEnd", "the commit log", "commits"),
    (r"TASK_WRITE_FAILED|sql\.delta\.", "a bucket", "buckets"),
    (r"RocksDBException|DiskStore|DiskBlock|shuffle\.sort", "a working file of Spark", None),
    (r"streaming\.state\.", "the state of the mutable buckets", "state"),
)
_STATE = re.compile(r"CANNOT_LOAD_STATE_STORE|CANNOT_READ_STREAMING_STATE_FILE")
_STATE_FILE = re.compile(r"(?:file:)?(\S+/state/\d+/\d+/[\w.-]*\w)")
# A file of the checkpoint, or the pointer to it, that does not match the checksum file next to it.
_CHECKSUM = re.compile(r"ChecksumException: Checksum error: (?:file:/*(?=/))?(\S+/checkpoint(?:s|-\d+)?/\S+)")
_READ_FILE = re.compile(r"FAILED_READ_FILE[\w.]*\] Encountered error while reading file (?:file:/*(?=/))?(\S+?)\.?\s")
_LOG = re.compile(r"\[(DELTA_(?:VERSIONS_NOT_CONTIGUOUS|STATE_RECOVER\w*|LOG_FILE\w*|TRUNCATED\w*|MISSING\w*))\] (.+)")
_LOG_FILE = re.compile(r"(?:file:/*(?=/))?(\S+/_delta_log/[\w.-]+\.(?:json|parquet))")
# Py4J puts a colon before the Java exception that it reports.
_CAUSE = re.compile(r"^(?:Caused by: |: )?([\w.$]+(?:Error|Exception)\b.*)$", re.MULTILINE)
_CAUSE_CHARS = 200
# Ends the loop if a cause is its own cause.
_MOST_CAUSES = 20


@contextmanager
def translate_storage_errors(settings: Settings) -> Iterator[None]:
    """Replace an error that Spark raises inside by a Delayline error, if it is a failure of the storage."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as problem:
        failure = storage_failure(text_of(problem), storage_path(settings))
        if failure is None:
            raise
        log.debug("the storage failed: %s", text_of(problem))
        raise failure from problem


def text_of(problem: Exception) -> str:
    """Return the whole text of an error of Spark, with Java's trace and its causes."""
    # For a Java exception that pyspark translates, it keeps the trace here, and prints it only on demand.
    return f"{problem}\n{getattr(problem, '_stackTrace', None) or ''}"


def text_of_query(query: StreamingQuery) -> str:
    """Return the whole text of a failed query, with the traces of its causes, which pyspark leaves out."""
    lines = [str(query.exception())]
    exception = query._jsq.exception()
    cause = exception.get().getCause() if exception.isDefined() else None
    while cause is not None and len(lines) < _MOST_CAUSES:
        frames = "\n".join(f"\tat {frame.toString()}" for frame in cause.getStackTrace())
        lines.append(f"Caused by: {cause.toString()}\n{frames}")
        cause = cause.getCause()
    return "\n".join(lines)


def storage_failure(text: str, storage: str) -> DelaylineError | None:
    """Return the Delayline error for `text`, Spark's text of a failure, or None if the storage did not fail.

    `storage` is the path or the URI of the job's storage.
    """
    for pattern, reason, done in _REFUSED:
        if re.search(pattern, text):
            return _refused(text, reason, done, storage)
    if _STATE.search(text):
        file = match[1] if (match := _STATE_FILE.search(text)) else _place(storage, "state")
        return CheckpointUnreadable(f"{file} is missing or damaged ({cause_of(text)}). {CHECKPOINT_REMEDY}")
    if checksum := _CHECKSUM.search(text):
        folder, _, name = checksum[1].rpartition("/")
        if folder.endswith("/checkpoints"):
            return CheckpointUnreadable(
                f"{checksum[1]} does not match its checksum. Check that it names the newest folder of a checkpoint, "
                f"and delete {folder}/.{name}.crc"
            )
        return CheckpointUnreadable(f"{checksum[1]} is damaged ({cause_of(text)}). {CHECKPOINT_REMEDY}")
    if entry := _LOG_FILE.search(text) or _LOG.search(text):
        return BucketUnreadable(
            f"cannot read the log of the table of sealed buckets: {entry[1]} is missing or damaged "
            f"({cause_of(text)}). Put {storage}/buckets/_delta_log back from a backup, completely and as new "
            "as the checkpoint"
        )
    if file := unreadable_file(text):
        return BucketUnreadable(f"{file} is missing or damaged ({cause_of(text)}). {TABLE_REMEDY}")
    return None


def unreadable_file(text: str) -> str | None:
    """Return the data file that Spark could not read, or None if `text` describes another failure."""
    match = _READ_FILE.search(text)
    return match[1] if match else None


def _refused(text: str, reason: str, done: str, storage: str) -> StorageFailed:
    steps = ((what, place) for pattern, what, place in _STEPS if re.search(pattern, text))
    what, place = next(steps, ("a file", ""))
    folder = tempfile.gettempdir() if place is None else _place(storage, place)
    return StorageFailed(
        f"{reason}: {what} could not be {done} in {folder}{free_space(folder)} ({cause_of(text)}). Fix the "
        "storage, and run the same command again. It continues from the last commit, and nothing is lost"
    )


def _place(storage: str, name: str) -> str:
    """Return the path of the folder `name` of the checkpoint, or of the storage: "buckets", or "" for all of it.

    If the checkpoint is not on a local file system, only Spark could read its pointer. Returns the storage then.
    """
    if name in ("", "buckets"):
        return f"{storage}/{name}".rstrip("/")
    local = local_folder(storage)
    return storage if local is None else str(local_checkpoint(local) / name)


def cause_of(text: str) -> str:
    """Return the message of the innermost cause, without its class, and shortened."""
    kind, _, message = innermost_cause(text).partition(": ")
    return (message if message and _CAUSE.match(kind) else innermost_cause(text))[:_CAUSE_CHARS]


def innermost_cause(text: str) -> str:
    """Return the innermost exception in `text`, Spark's text of a failure: its class, and its message after a colon."""
    causes = _CAUSE.findall(text)
    return str(causes[-1] if causes else text.splitlines()[0])
