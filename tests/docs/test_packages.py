"""The docstring of each package lists all its modules, and no others, in reading order. Pure modules are held to it."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.documents import ROOT

PACKAGES = sorted(
    path.parent
    for top in ("conf", "sources", "state", "sinks", "streaming")
    for path in (ROOT / top).rglob("__init__.py")
)


def short(package: Path) -> str:
    return str(package.relative_to(ROOT))


def reading_order(package: Path) -> list[str]:
    """Return the modules and packages that the paragraph "Read ..." names, as paths below `package`."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    paragraphs = [paragraph for paragraph in text.split("\n\n") if paragraph.startswith("Read ")]
    assert len(paragraphs) == 1, f"{package}: one paragraph says in which order to read it"
    words = re.findall(r"`([\w.]+)`", paragraphs[0])
    return [word.replace(".", "/") for word in words]


@pytest.mark.parametrize("package", PACKAGES, ids=short)
def test_the_reading_order_of_a_package_names_only_its_own_modules(package: Path) -> None:
    named = reading_order(package)
    missing = [name for name in named if not ((package / name).is_dir() or (package / f"{name}.py").exists())]
    assert missing == []


# Each module of the command line is a command, and listed in `app`.
@pytest.mark.parametrize("package", [package for package in PACKAGES if package.name != "cli"], ids=short)
def test_a_package_names_every_module_and_package_in_it(package: Path) -> None:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    children = {path.stem for path in package.glob("*.py")} | {
        path.parent.name for path in package.glob("*/__init__.py")
    }
    named = {part for words in re.findall(r"`([\w.]+)`", text) for part in words.split(".")}
    assert children - named - {"__init__", "__main__"} == set()


def test_a_module_that_is_called_pure_is_in_the_contract_that_holds_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    held = next(each["source_modules"] for each in contracts if each["name"].startswith("Decisions are made"))
    modules = [path for package in PACKAGES for path in package.glob("*.py") if path.name != "__init__.py"]
    pure = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in modules
        if re.search(r"\bpure\b", ast.get_docstring(ast.parse(path.read_text())) or "", re.IGNORECASE)
    ]
    assert len(pure) > 5
    assert [name for name in pure if not any(f"{name}.".startswith(f"{each}.") for each in held)] == []
