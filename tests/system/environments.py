"""New Python environments that have the packages of the tests' own."""

from __future__ import annotations

import sysconfig
import venv
from pathlib import Path


def new_environment(folder: Path, *code: Path) -> Path:
    """Make an environment in `folder` and return its Python, which looks in the folders `code` first.

    It has the dependencies, but no editable install of a checkout: Python ignores `.pth` files in a folder that one
    of them names.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    places = [*map(str, code), sysconfig.get_path("purelib")]
    (site / "dependencies.pth").write_text("".join(f"{place}\n" for place in places))
    return folder / "bin" / "python"
