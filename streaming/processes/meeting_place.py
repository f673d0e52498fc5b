"""Where a command finds a process that an earlier command has left behind: a socket in a folder of the user.

Nobody but the user can enter the folder, so that each side may trust the other.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def meeting_place(application_id: str, bootstrap_servers: str, member: str) -> Path | None:
    """Return the path of the socket for the process `member`; None if the folder is not this user's alone."""
    folder = Path(tempfile.gettempdir(), f"delayline-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        return None
    # A socket's path may have about a hundred characters.
    name = hashlib.sha256("\0".join((application_id, bootstrap_servers, member)).encode()).hexdigest()[:24]
    return folder / f"{name}.socket"


def listen(place: Path) -> socket.socket:
    """Return a socket that listens at `place`. Removes the socket file of an earlier process. Raises OSError."""
    place.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(place))
        listener.listen(1)
    except OSError:
        listener.close()
        raise
    return listener


def connect(place: Path, timeout_s: float) -> socket.socket | None:
    """Return a connection to the process that listens at `place`, or None if nobody listens."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout_s)
    try:
        connection.connect(str(place))
    except OSError:
        connection.close()
        return None
    return connection
