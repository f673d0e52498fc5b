"""The wheel holds every file of the packages: code, jar lists, logging configurations, the default settings."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("conf", "sources", "state", "sinks", "streaming")
# For building an image, from a checkout.
LEFT_OUT = ("conf/docker/",)


def test_the_wheel_holds_every_file_of_the_packages(tmp_path: Path) -> None:
    # In a copy, since a build leaves folders in the checkout.
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = tracked.stdout.splitlines()
    for file in files:
        if file.startswith(PACKAGES) or "/" not in file:
            (tmp_path / "source" / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "source" / file).write_bytes((ROOT / file).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(tmp_path / "source")], check=True)
    (wheel,) = tmp_path.glob("delayline-*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if not name.partition("/")[0].endswith(".dist-info")}
    wanted = {file for file in files if file.startswith(tuple(f"{name}/" for name in PACKAGES))}
    assert held == {file for file in wanted if not file.startswith(LEFT_OUT)}
