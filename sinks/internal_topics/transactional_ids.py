"""The transactional ids of an application: producers with the same one fence each other.

The parts of an id are separated by a character that no application id contains. So two applications never share an id,
and a right on the ids of `orders` that names the prefix `orders:` does not include the ids of `orders-eu`.
"""

from __future__ import annotations

_SEPARATOR = ":"


def transactional_id(application_id: str, *parts: str | int) -> str:
    """Return the id of one producer of an application, which `parts` name."""
    return _SEPARATOR.join([application_id, *map(str, parts)])
