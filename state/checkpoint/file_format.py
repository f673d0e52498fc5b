"""The format number in each file of Delayline in a checkpoint. All files share one number."""

from __future__ import annotations

import json

from conf.errors import CheckpointUnreadable, CheckpointVersion

# Raise this with every change after which an earlier Delayline would misread a file, or the messages in Spark's state.
FORMAT = 2
_KEY = "format"


def with_format(text: str) -> str:
    """Return the JSON object `text` with the format number added."""
    return json.dumps({_KEY: FORMAT, **json.loads(text)}, indent=1)


def without_format(text: str, file: str) -> str:
    """Return the JSON object `text`, read from `file`, without its format number.

    Raises CheckpointVersion for any format but `FORMAT`, and CheckpointUnreadable if `text` is not a JSON object with a
    format number.
    """
    try:
        content = dict(json.loads(text))
        version = content.pop(_KEY)
    except (KeyError, TypeError, ValueError) as problem:
        raise CheckpointUnreadable(
            f"{file} is damaged ({problem!r}). Restore it from a backup, or make a new checkpoint with "
            "`delayline rebuild --discard-checkpoint`"
        ) from problem
    if version != FORMAT:
        raise CheckpointVersion(
            f"{file} has format {version!r}, but this Delayline reads format {FORMAT}. Run the version that "
            "wrote it, or make a new checkpoint with `delayline rebuild --discard-checkpoint` of this "
            "version"
        )
    return json.dumps(content)
