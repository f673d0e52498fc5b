"""The wheel: it contains every file of the packages, and its code needs no development tool."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("conf", "sources", "state", "sinks", "streaming")
# Only needed in a checkout: to build an image, and to change a deployment.
EXCLUDED = ("conf/docker/", "conf/kubernetes/")
# Only tests and benchmarks import it.
FOR_TESTS = ("conf.process_tree",)


def test_the_wheel_contains_every_file_of_the_packages(tmp_path: Path) -> None:
    # Build in a copy, since a build leaves folders in the checkout.
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = tracked.stdout.splitlines()
    for file in files:
        if file.startswith(PACKAGES) or "/" not in file:
            (tmp_path / "source" / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "source" / file).write_bytes((ROOT / file).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(tmp_path / "source")], check=True)
    (wheel,) = tmp_path.glob("delayline-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if not name.partition("/")[0].endswith(".dist-info")}
    wanted = {file for file in files if file.startswith(tuple(f"{name}/" for name in PACKAGES))}
    assert packed == {file for file in wanted if not file.startswith(EXCLUDED)}


def test_the_service_runs_without_the_development_tools() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    names = [re.split(r"[<>=]", tool)[0].replace("-", "_") for tool in tools]
    # None in sys.modules makes an import of the name fail. Spark comes from its own package: no module needs Java here.
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({[*names, 'ruamel']}))\n"
        "import pkgutil, importlib\n"
        f"for package in {PACKAGES}:\n"
        "    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + '.'):\n"
        f"        if found.name not in {FOR_TESTS} and not found.name.endswith('__main__'):\n"
        "            importlib.import_module(found.name)\n"
    )
    imported = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert imported.returncode == 0, imported.stderr
