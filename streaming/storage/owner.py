"""The owner of a storage: a file under `storage.path` names the application and its Kafka cluster.

The lease of an application guards no other storage, and none that a job with another cluster uses.
"""

from __future__ import annotations

from contextlib import suppress

from py4j.protocol import Py4JJavaError
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass
from pyspark.sql import SparkSession

from conf.errors import CheckpointMismatch, CheckpointUnreadable
from conf.settings import Settings
from state.checkpoint.stored_json import STORED, read_stored
from streaming.storage.failures import translate_storage_errors
from streaming.storage.folder import Folder
from streaming.storage.paths import storage_path

OWNER = "delayline-application.json"
_DELETE = f"delete {OWNER} and .{OWNER}.crc next to it, and start again"


@dataclass(frozen=True, config=STORED)
class _Owner:
    """`cluster_id` is None if the brokers do not tell it."""

    application_id: str
    cluster_id: str | None


_OWNER = TypeAdapter(_Owner)


def claim_storage(spark: SparkSession, settings: Settings, cluster_id: str | None) -> None:
    """Record that the storage belongs to this application of this Kafka cluster, unless that is recorded already.

    `cluster_id` is None if the brokers do not tell it. Raises CheckpointMismatch if the storage belongs to another
    application or cluster, CheckpointUnreadable if the file is damaged, StorageFailed.
    """
    folder, own = Folder(spark, storage_path(settings)), _Owner(settings.application_id, cluster_id)
    with translate_storage_errors(settings):
        owner = _owner(folder)
        if owner is None:
            # Another process may be faster.
            with suppress(FileExistsError):
                folder.write(OWNER, _OWNER.dump_json(own).decode(), replace=False)
            owner = _owner(folder) or own
    if owner.application_id != own.application_id:
        raise CheckpointMismatch(
            f"the storage {folder.path} belongs to application {owner.application_id}, but application_id is "
            f"{own.application_id}. Nothing was changed. Set application_id to {owner.application_id}, or give this "
            "application a storage.path of its own"
        )
    if None not in (owner.cluster_id, cluster_id) and owner.cluster_id != cluster_id:
        raise CheckpointMismatch(
            f"the storage {folder.path} belongs to application {owner.application_id} of Kafka cluster "
            f"{owner.cluster_id}, but kafka.bootstrap_servers names cluster {cluster_id}. Nothing was changed. Set it "
            "back. To move to this cluster, see docs/operate/move.md. If the other cluster and all of its topics are "
            f"lost, {_DELETE}"
        )


def _owner(folder: Folder) -> _Owner | None:
    """Return the recorded owner of the storage, or None if none is recorded."""
    try:
        text = folder.read(OWNER)
        return None if text is None else read_stored(_OWNER, text)
    except Py4JJavaError as problem:
        if "ChecksumException" not in str(problem):
            raise
    except ValueError:
        pass
    raise CheckpointUnreadable(
        f"{folder.path}/{OWNER} is damaged: it does not name the application that the storage belongs to. If that is "
        f"this application, {_DELETE}"
    )
