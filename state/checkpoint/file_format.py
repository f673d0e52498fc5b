"""The format of the files that a checkpoint keeps beside Spark's: one number in each, for all of them."""

from __future__ import annotations

import json

from conf.errors import CheckpointUnreadable, CheckpointVersion

# Another number for every change after which an earlier Delayline would misread a file.
FORMAT = 1
_KEY = "format"


def with_format(text: str) -> str:
    """Return the JSON object `text` with the number of its format."""
    return json.dumps({_KEY: FORMAT, **json.loads(text)}, indent=1)


def without_format(text: str, file: str) -> str:
    """Return the JSON object `text`, read from `file`, without that number.

    A file without one is of the first format. Raises CheckpointVersion if it is of another than `FORMAT`,
    CheckpointUnreadable if it is no JSON object.
    """
    try:
        facts = dict(json.loads(text))
    except (TypeError, ValueError) as problem:
        raise CheckpointUnreadable(
            f"{file} is damaged ({problem!r}). Put it back from a backup, or let `delayline rebuild "
            "--discard-checkpoint` make a new checkpoint"
        ) from problem
    found = facts.pop(_KEY, 1)
    if found != FORMAT:
        raise CheckpointVersion(
            f"{file} is of format {found!r}, and this Delayline reads format {FORMAT}: run the version that wrote it, "
            "or let `delayline rebuild --discard-checkpoint` of this one make a new checkpoint"
        )
    return json.dumps(facts)
