"""The pointer: it names the folder of the current checkpoint, so that no checkpoint ever moves.

Pointers are numbered by the generations of their checkpoints, and the highest number counts. A pointer is never
replaced: a crash leaves either the one before or the new one, and a late process cannot undo a newer one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from conf.errors import CheckpointUnreadable

# The checkpoint that a job begins with has no pointer.
FIRST_FOLDER = "checkpoint"


def folder_of(generation: int) -> str:
    """Return the name of the folder for a checkpoint of this generation that follows another checkpoint."""
    return f"{FIRST_FOLDER}-{generation}"


def newest_pointer(names: Iterable[str]) -> int | None:
    """Return the highest number among the `names` of files; None if no name is a number."""
    return max((int(name) for name in names if name.isdecimal()), default=None)


def pointer_to(folder: str) -> str:
    """Return the text of a pointer to the folder of this name, such as {"folder": "checkpoint-2"}."""
    return json.dumps({"folder": folder})


def folder_in(text: str, file: str) -> str:
    """Return the name of the folder in `text`, which `pointer_to` wrote and was read from `file`.

    Raises CheckpointUnreadable.
    """
    try:
        folder = json.loads(text)["folder"]
    except (KeyError, TypeError, ValueError):
        folder = None
    if not isinstance(folder, str) or not folder or "/" in folder:
        parent, _, name = file.rpartition("/")
        raise CheckpointUnreadable(
            f"{file} is damaged: it does not name the folder of a checkpoint. Write the name of the newest "
            f"folder into it, such as {pointer_to(folder_of(2))}, and delete the checksum {parent}/.{name}.crc "
            "if it exists"
        )
    return folder
