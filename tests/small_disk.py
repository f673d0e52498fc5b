"""File systems of a few megabytes for a test to fill: tmpfs, mounted at the job's storage path."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

# `sudo -n` asks for no password. It works on a CI runner.
_PREFIXES: tuple[list[str], ...] = ([], ["sudo", "-n"])


class CannotMount(Exception):
    """Neither this user nor sudo may mount. The text is the error message of `mount`."""


class SmallDisk:
    """A tmpfs of `mb` megabytes, mounted at `path`, which it creates."""

    def __init__(self, path: Path, mb: int = 8) -> None:
        """Mount the disk.

        Raises:
            CannotMount: mounting is not allowed here.
        """
        self.path = path
        self._ballast = path / "ballast"
        path.mkdir(parents=True, exist_ok=True)
        options = f"size={mb}m,uid={os.getuid()},gid={os.getgid()},mode=755"
        for self._prefix in _PREFIXES:
            error = self._try("mount", "-t", "tmpfs", "-o", options, "delayline-test", str(path))
            if not error:
                self._is_mounted = True
                return
        raise CannotMount(error)

    def fill(self) -> None:
        """Fill the disk to the last page."""
        with self._ballast.open("wb", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(b"\1" * 1024)
        assert shutil.disk_usage(self.path).free == 0

    def free(self) -> None:
        """Delete what `fill` wrote."""
        self._ballast.unlink()

    def make_read_only(self) -> None:
        """Remount the disk read-only."""
        error = self._try("mount", "-o", "remount,ro", str(self.path))
        assert not error, error

    def close(self) -> None:
        """Unmount the disk, even if a process has a file open on it. Further calls do nothing."""
        if not self._is_mounted:
            return
        error = self._try("umount", "-l", str(self.path))
        assert not error, error
        self._is_mounted = False

    def _try(self, *command: str) -> str:
        try:
            result = subprocess.run([*self._prefix, *command], capture_output=True, text=True)
        except FileNotFoundError as error:
            return str(error)
        return "" if result.returncode == 0 else result.stderr or f"{command[0]} ended with {result.returncode}"
