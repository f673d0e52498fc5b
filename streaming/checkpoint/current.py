"""Which checkpoint of an application is the current one, and how another becomes it.

Every checkpoint stays in the folder in which it was made. A pointer (`state.checkpoint.pointer`) names the folder of
the current one; an object store has no rename of a folder.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from pyspark.sql import SparkSession

from conf.errors import CheckpointMismatch
from conf.settings import Settings
from state.checkpoint.pointer import FIRST_FOLDER, folder_in, folder_of, newest_pointer, pointer_to
from streaming.checkpoint.checkpoint import ORIGIN, Checkpoint
from streaming.spark.session import open_session
from streaming.storage.failures import translate_storage_errors
from streaming.storage.folder import Folder
from streaming.storage.paths import checkpoint_path, local_checkpoint, local_folder, pointers_path, storage_path


def current_checkpoint(
    spark: SparkSession, settings: Settings, before_write: Callable[[], None] = lambda: None
) -> Checkpoint:
    """Return the current checkpoint, which may not exist. Raises CheckpointUnreadable.

    `before_write` raises if this process may not write to it.
    """
    pointers = Folder(spark, pointers_path(settings))
    newest = newest_pointer(pointers.names())
    folder = FIRST_FOLDER
    if newest is not None:
        folder = folder_in(pointers.read(str(newest)) or "", f"{pointers.path}/{newest}")
    return Checkpoint(spark, checkpoint_path(settings, folder), before_write)


def has_checkpoint(settings: Settings) -> bool:
    """Return whether the application has a checkpoint. Starts Spark, if the storage is not a folder of this machine."""
    folder = local_folder(storage_path(settings))
    if folder is not None:
        return (local_checkpoint(folder) / ORIGIN).exists()
    spark = open_session(settings)
    try:
        with translate_storage_errors(settings):
            return current_checkpoint(spark, settings).is_initialized()
    finally:
        spark.stop()


def checkpoint_of(
    spark: SparkSession, settings: Settings, generation: int, before_write: Callable[[], None]
) -> Checkpoint:
    """Return the checkpoint of this generation, which follows another. It may not exist.

    `before_write` raises if this process may not write to it.
    """
    return Checkpoint(spark, checkpoint_path(settings, folder_of(generation)), before_write)


def newest_generation(spark: SparkSession, settings: Settings) -> int:
    """Return the generation of the newest pointer; 0 without pointers."""
    return newest_pointer(Folder(spark, pointers_path(settings)).names()) or 0


def make_current(spark: SparkSession, settings: Settings, checkpoint: Checkpoint) -> None:
    """Write the pointer to `checkpoint`, in one step.

    Raises CheckpointMismatch, and writes nothing, if there is one of its generation or a newer one.
    """
    generation, folder = checkpoint.origin.generation, checkpoint.path.rpartition("/")[2]
    # Another command may write its pointer between the look and the write.
    with suppress(FileExistsError):
        if newest_generation(spark, settings) < generation:
            Folder(spark, pointers_path(settings)).write(str(generation), pointer_to(folder), replace=False)
            return
    raise CheckpointMismatch(
        f"{checkpoint.path} cannot become the current checkpoint: a pointer in {pointers_path(settings)} "
        "names one that is as new or newer. Another command has replaced the checkpoint meanwhile"
    )
