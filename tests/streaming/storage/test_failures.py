"""Messages that Spark was seen to print about failing storage, and the errors that Delayline makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.errors import BucketUnreadable, CheckpointUnreadable, DelaylineError, StorageFailed
from state.checkpoint.pointer import pointer_to
from streaming.storage.failures import innermost_cause, storage_failure

STORAGE = "/srv/delayline"
PARQUET = f"{STORAGE}/buckets/part=001-002/part-00000-6d5e-c000.parquet"
LOG = f"{STORAGE}/buckets/_delta_log/00000000000000000001.json"
CHANGELOG = f"{STORAGE}/checkpoint/state/0/1/3.changelog"
FULL = "Caused by: java.io.IOException: No space left on device\n\tat java.base/java.io.FileOutputStream.writeBytes"


def failure_of(text: str) -> DelaylineError:
    failure = storage_failure(text, STORAGE)
    assert failure is not None
    return failure


@pytest.mark.parametrize(
    ("trace", "data", "path"),
    [
        ("\tat MicroBatchExecution.markMicroBatchStart(M.scala:911)", "the offset log", "/checkpoint/offsets"),
        ("\tat MicroBatchExecution.$anonfun$markMicroBatchEnd$1(M.scala)", "the commit log", "/checkpoint/commits"),
        (f"[TASK_WRITE_FAILED] Task failed while writing rows to file:{STORAGE}/buckets.", "a bucket", "/buckets"),
        ("\tat org.apache.spark.sql.delta.storage.HDFSLogStore.write", "a bucket", "/buckets"),
        ("\tat o.a.s.sql.execution.streaming.state.RocksDB.commit(R.scala)", "the state of", "/checkpoint/state"),
        ("\tat java.io.Anything", "a file", ""),
    ],
)
def test_a_full_disk_is_reported_with_the_data_being_written_and_its_path(trace: str, data: str, path: str) -> None:
    failure = failure_of(f"org.apache.spark.SparkException: Job aborted\n{trace}\n{FULL}")
    assert isinstance(failure, StorageFailed)
    assert str(failure).startswith(f"storage-failed: no space left: {data}")
    assert f" could not be written in {STORAGE}{path}, where " in str(failure)
    assert "run the same command again" in str(failure)


def test_a_pointer_without_its_own_checksum_is_named_with_the_file_to_delete() -> None:
    pointer = f"{STORAGE}/checkpoints/2"
    failure = failure_of(f"org.apache.hadoop.fs.ChecksumException: Checksum error: file:{pointer} at 0 exp: 1 got: 2")
    assert isinstance(failure, CheckpointUnreadable)
    assert f"{pointer} does not match its checksum" in str(failure)
    assert str(failure).endswith(f"delete {STORAGE}/checkpoints/.2.crc")


def test_a_full_working_folder_of_spark_is_not_taken_for_the_storage() -> None:
    assert STORAGE not in str(failure_of(f"\tat org.rocksdb.RocksDBException: While appending: \n{FULL}"))


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("java.io.FileNotFoundException: /srv/x (Read-only file system)", "the file system is read-only"),
        ("java.io.FileNotFoundException: /srv/x (Permission denied)", "permission denied"),
        ("java.nio.file.AccessDeniedException: /srv/x", "permission denied"),
        ("java.io.IOException: Input/output error", "the device fails"),
    ],
)
def test_a_storage_that_refuses_access_is_reported_with_the_reason(cause: str, reason: str) -> None:
    assert str(failure_of(f"x\nCaused by: {cause}")).startswith(f"storage-failed: {reason}: ")


@pytest.mark.parametrize(
    "text",
    [
        "[CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE] An error occurred during loading state. Error "
        f"reading streaming state file of file:{CHANGELOG} does not exist. If the stream job is restarted",
        f"[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred\nCaused by: java.io.IOException: {CHANGELOG} no",
    ],
)
def test_a_missing_state_file_is_named(text: str) -> None:
    failure = failure_of(text)
    assert isinstance(failure, CheckpointUnreadable)
    assert str(failure).startswith(f"checkpoint-unreadable: {CHANGELOG} is missing or damaged (")
    assert "delayline rebuild --discard-checkpoint" in str(failure)


def test_for_a_state_file_that_spark_does_not_name_the_folder_of_the_state_is_named() -> None:
    text = "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error\nCaused by: java.io.EOFException: Stream ended prematurely"
    assert f"{STORAGE}/checkpoint/state is missing or damaged (Stream ended prematurely)" in str(failure_of(text))


def test_the_place_is_in_the_checkpoint_that_the_pointer_names(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "2").write_text(pointer_to("checkpoint-2"))
    text = f"\tat MicroBatchExecution.markMicroBatchStart(M.scala:911)\n{FULL}"
    assert f"could not be written in {tmp_path}/checkpoint-2/offsets" in str(storage_failure(text, str(tmp_path)))
    # Nothing but Spark could read the pointer there.
    assert "could not be written in s3a://bucket/d (" in str(storage_failure(text, "s3a://bucket/d"))


@pytest.mark.parametrize("scheme", ["file:", "file://", ""])
def test_a_data_file_that_cannot_be_read_is_named_with_the_command_that_repairs_it(scheme: str) -> None:
    text = (
        f"[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file {scheme}{PARQUET}. File does not "
        f"exist.\nCaused by: java.io.FileNotFoundException: File `{PARQUET}` does not exist."
    )
    failure = failure_of(text)
    assert isinstance(failure, BucketUnreadable)
    assert str(failure).startswith(f"bucket-unreadable: {PARQUET} is missing or damaged (File `{PARQUET}` does not")
    assert "delayline repair" in str(failure)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file://{LOG}.  SQLSTATE: KD001", LOG),
        ("[DELTA_VERSIONS_NOT_CONTIGUOUS] Versions (0, 2, 3) are not contiguous.", "DELTA_VERSIONS_NOT_CONTIGUOUS"),
    ],
)
def test_a_damaged_log_of_the_table_is_distinguished_from_its_data(text: str, named: str) -> None:
    failure = failure_of(text)
    assert isinstance(failure, BucketUnreadable)
    assert f"cannot read the log of the table of sealed buckets: {named} is missing or damaged" in str(failure)
    assert "delayline repair" not in str(failure)


def test_other_failures_are_not_storage_failures() -> None:
    assert storage_failure("org.apache.kafka.common.errors.TimeoutException: Call(...) timed out", STORAGE) is None


def test_the_innermost_cause_is_javas_exception_and_not_pythons_wrapper() -> None:
    java = "io.delta.exceptions.ConcurrentTransactionException: [DELTA_CONCURRENT_TRANSACTION] twice"
    python = "py4j.protocol.Py4JJavaError: An error occurred while calling o416.save."
    assert innermost_cause(f"Traceback\n{python}\n: {java}\n\tat org.apache") == java
    assert innermost_cause(f"{python}\n: {java}\nCaused by: java.io.EOFException\n\tat x") == "java.io.EOFException"
    assert innermost_cause("no exception\nat all") == "no exception"
