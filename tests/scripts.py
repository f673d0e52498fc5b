"""Scripts of the repository as modules: they are in no package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def module_of(path: Path) -> ModuleType:
    """Return the script at `path` as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
