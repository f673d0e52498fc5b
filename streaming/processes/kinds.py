"""The kinds of processes that a command starts and supervises."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """The kind of a process. The value is its name in logs and errors."""

    RELEASE = "release process"
    FORWARD = "forwarder"

    @property
    def comm(self) -> str:
        """The name of such a process for those who look at the processes of a host, as Linux cuts it: 15 characters."""
        return {Kind.RELEASE: "delayline-rel", Kind.FORWARD: "delayline-fwd"}[self]


# The name of a process that has no orders yet.
SPARE = "delayline-spare"
