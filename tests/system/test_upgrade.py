"""The upgrade of docs/platform/upgrade.md, from an earlier version, and the way back.

No version was released yet. Until then the newest commit with other code stands for it. The procedure runs here, in its
own environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import pytest

from conf.java.jars.installed import jars_folder
from conf.java.spark_line import spark_line
from tests.system.conftest import Application, MakeService
from tests.system.environments import new_environment
from tests.system.ledger import Ledger
from tests.system.load import publish_mixed
from tests.system.service import Service

_REPOSITORY = Path(__file__).parent.parent.parent
_SERVICE = ("conf", "sources", "state", "sinks", "streaming")
_ITS_SPARK = "4.0"
_DELIVERED = 100


@dataclass(frozen=True)
class Version:
    """A version in an environment of its own: how to run its processes."""

    python: str | Path = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)

    def use(self, service: Service) -> None:
        """Let `service` run it from its next start on."""
        service.python, service.environment = self.python, dict(self.environment)


def installed(folder: Path) -> Version:
    """Install an earlier version, with its own Spark and jars, in an environment that has our other packages."""
    if spark_line() != _ITS_SPARK:
        pytest.skip(f"an earlier version runs with Spark {_ITS_SPARK} alone")
    git = shutil.which("git")
    if git is None:
        pytest.skip("an earlier version comes from git")
    shallow = subprocess.run([git, "-C", _REPOSITORY, "rev-parse", "--is-shallow-repository"], capture_output=True)
    if shallow.returncode or shallow.stdout.strip() == b"true":
        pytest.skip("an earlier version is not in this clone")
    is_changed = subprocess.run([git, "-C", _REPOSITORY, "diff", "--quiet", "HEAD", "--", *_SERVICE]).returncode
    commit = "HEAD" if is_changed else "HEAD~1"
    code = folder / "code"
    code.mkdir(parents=True)
    archive = subprocess.run([git, "-C", _REPOSITORY, "archive", commit], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", code], input=archive, check=True)
    packages, has_our_spark = folder / "packages", not (pins := _other_pins(code))
    if pins:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages), *pins]
        subprocess.run(pip, check=True)
    # Or else Python would take the packages in the working folder of the tests.
    version = Version(new_environment(folder / "environment", code, packages), {"PYTHONSAFEPATH": "1"})
    ours = {"DELAYLINE_JARS__FOLDER": str(jars_folder("spark").parent)} if has_our_spark else {}
    environment = {**os.environ, **version.environment, **ours}
    subprocess.run([version.python, "-m", "streaming.cli", "jars"], env=environment, check=True)
    return version


def _other_pins(code: Path) -> list[str]:
    """Return the pins of Spark and Delta in a checkout that are not what is installed here."""
    pins = (line.partition("#")[0].strip() for line in (code / "constraints.txt").read_text().splitlines())
    of_spark = [pin for pin in pins if pin.partition("==")[0] in ("pyspark", "delta-spark")]
    assert len(of_spark) == 2, "the versions that were run together"
    return [pin for pin in of_spark if metadata.version(pin.partition("==")[0]) != pin.partition("==")[2]]


def run_on(service: Service, ledger: Ledger, application: Application, seed: int) -> None:
    """Start the job, let it seal and deliver, and stop it."""
    service.start()
    before = len(ledger.got)
    publish_mixed(ledger, application, 400, seed, longest_ms=60_000)
    ledger.wait_for(lambda: len(ledger.got) >= before + _DELIVERED, 60)
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
@pytest.mark.takes(120)
def test_a_newer_version_goes_on_where_an_older_one_was_stopped_and_back(
    application: Application, make_service: MakeService, tmp_path: Path
) -> None:
    this, earlier = Version(), installed(tmp_path / "earlier")
    service, ledger = make_service()
    earlier.use(service)
    run_on(service, ledger, application, seed=1)
    this.use(service)
    assert service.command("topics", "create") == 0, service.log[-3000:]
    run_on(service, ledger, application, seed=2)
    earlier.use(service)
    run_on(service, ledger, application, seed=3)
    this.use(service)
    service.start()
    ledger.wait_for_all(120)
    ledger.verify_after_outage(120)
    assert service.stop() == 0, service.log[-3000:]
