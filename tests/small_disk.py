"""File systems of a few megabytes, which a test fills: tmpfs, mounted where the job stores."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

# Without a password asked for, as on a CI runner.
_WAYS: tuple[list[str], ...] = ([], ["sudo", "-n"])


class CannotMount(Exception):
    """Neither this user nor sudo may mount; the text is what `mount` said."""


class SmallDisk:
    """A tmpfs of `mb` megabytes at `path`, which is made."""

    def __init__(self, path: Path, mb: int = 8) -> None:
        """Raises CannotMount."""
        self.path = path
        self._ballast = path / "ballast"
        path.mkdir(parents=True, exist_ok=True)
        options = f"size={mb}m,uid={os.getuid()},gid={os.getgid()},mode=755"
        for self._way in _WAYS:
            said = self._try("mount", "-t", "tmpfs", "-o", options, "delayline-test", str(path))
            if not said:
                self._is_mounted = True
                return
        raise CannotMount(said)

    def fill(self) -> None:
        """Leave not a page free."""
        with self._ballast.open("wb", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(b"\1" * 1024)
        assert shutil.disk_usage(self.path).free == 0

    def free(self) -> None:
        """Take out what `fill` wrote."""
        self._ballast.unlink()

    def be_read_only(self) -> None:
        """Let nothing be written any more."""
        said = self._try("mount", "-o", "remount,ro", str(self.path))
        assert not said, said

    def become_folder(self) -> None:
        """Let a plain folder take its place, with all that it holds."""
        aside = self.path.with_name(f"{self.path.name}-aside")
        shutil.copytree(self.path, aside)
        self.close()
        self.path.rmdir()
        aside.rename(self.path)

    def close(self) -> None:
        """Unmount it, even while a process has a file open in it; once."""
        if not self._is_mounted:
            return
        said = self._try("umount", "-l", str(self.path))
        assert not said, said
        self._is_mounted = False

    def _try(self, *command: str) -> str:
        try:
            done = subprocess.run([*self._way, *command], capture_output=True, text=True)
        except FileNotFoundError as problem:
            return str(problem)
        return "" if done.returncode == 0 else done.stderr or f"{command[0]} ended with {done.returncode}"
