"""Whose storage it is: a file under `storage.path` names the application. Its lease guards the storage of no other."""

from __future__ import annotations

import json
from contextlib import suppress

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from conf.errors import CheckpointMismatch, CheckpointUnreadable
from conf.settings import Settings
from streaming.storage.failures import translate_storage_errors
from streaming.storage.folder import Folder
from streaming.storage.paths import storage_path

OWNER = "delayline-application.json"
_KEY = "application_id"


def claim_storage(spark: SparkSession, settings: Settings) -> None:
    """Record that the storage belongs to this application, unless it is recorded already.

    Raises CheckpointMismatch if it belongs to another application, CheckpointUnreadable if the file is damaged,
    StorageFailed.
    """
    folder = Folder(spark, storage_path(settings))
    with translate_storage_errors(settings):
        owner = _owner(folder)
        if owner is None:
            # Another process may be faster.
            with suppress(FileExistsError):
                folder.write(OWNER, json.dumps({_KEY: settings.application_id}), replace=False)
            owner = _owner(folder)
    if owner != settings.application_id:
        raise CheckpointMismatch(
            f"the storage {folder.path} belongs to application {owner}, but application_id is "
            f"{settings.application_id}. Nothing was changed. Set application_id to {owner}, or give this application "
            "a storage.path of its own"
        )


def _owner(folder: Folder) -> str | None:
    """Return the application that the storage belongs to, or None if that is not recorded."""
    try:
        text = folder.read(OWNER)
        owner = None if text is None else json.loads(text)[_KEY]
        if text is None or isinstance(owner, str):
            return owner
    except Py4JJavaError as problem:
        if "ChecksumException" not in str(problem):
            raise
    except (KeyError, TypeError, ValueError):
        pass
    raise CheckpointUnreadable(
        f"{folder.path}/{OWNER} is damaged: it does not name the application that the storage belongs to. If that is "
        f"this application, delete the file and .{OWNER}.crc next to it, and start again"
    )
