"""The upgrade of docs/compatibility.md, "Upgrade", from earlier versions, and the way back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conf.java.jars import jars_folder
from conf.java.spark_line import spark_line
from tests.system.conftest import Application, MakeService
from tests.system.environments import new_environment
from tests.system.ledger import Ledger
from tests.system.load import publish_mixed
from tests.system.service import Service

_REPOSITORY = Path(__file__).parent.parent.parent
# A version that reads what this one has written; and one before some settings of batches that this one records.
_BEFORE, _LONG_BEFORE = "762853c", "8a487f7"
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


def installed(commit: str, folder: Path) -> Version:
    """Install an earlier version in an environment that has the packages of this one, and jars of its own."""
    if spark_line() != _ITS_SPARK:
        pytest.skip(f"an earlier version runs with Spark {_ITS_SPARK} alone")
    git = shutil.which("git")
    if git is None:
        pytest.skip("an earlier version comes from git")
    shallow = subprocess.run([git, "-C", _REPOSITORY, "rev-parse", "--is-shallow-repository"], capture_output=True)
    if shallow.returncode or shallow.stdout.strip() == b"true":
        pytest.skip(f"an earlier version is not in this clone: {commit}")
    code = folder / "code"
    code.mkdir(parents=True)
    archive = subprocess.run([git, "-C", _REPOSITORY, "archive", commit], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", code], input=archive, check=True)
    # Or else Python would take the packages in the working folder of the tests.
    version = Version(new_environment(folder / "environment", code), {"PYTHONSAFEPATH": "1"})
    subprocess.run(
        [version.python, "-m", "streaming.cli", "jars"],
        env={**os.environ, **version.environment, "DELAYLINE_JARS__FOLDER": str(jars_folder("spark").parent)},
        check=True,
    )
    return version


def run_on(service: Service, ledger: Ledger, application: Application, seed: int) -> None:
    """Start the job, let it seal and deliver, and stop it."""
    service.start()
    before = len(ledger.got)
    publish_mixed(ledger, application, 400, seed, longest_ms=60_000)
    ledger.wait_for(lambda: len(ledger.got) >= before + _DELIVERED, 60)
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
@pytest.mark.takes(120)
@pytest.mark.parametrize(("commit", "goes_back"), [(_BEFORE, True), (_LONG_BEFORE, False)])
def test_a_newer_version_goes_on_where_an_older_one_was_stopped(
    application: Application, make_service: MakeService, tmp_path: Path, commit: str, goes_back: bool
) -> None:
    this, earlier = Version(), installed(commit, tmp_path / "earlier")
    service, ledger = make_service()
    earlier.use(service)
    run_on(service, ledger, application, seed=1)
    this.use(service)
    assert service.command("topics", "create") == 0, service.log[-3000:]
    run_on(service, ledger, application, seed=2)
    if goes_back:
        earlier.use(service)
        run_on(service, ledger, application, seed=3)
        this.use(service)
    service.start()
    ledger.wait_for_all(120)
    ledger.verify_after_outage(120)
    assert service.stop() == 0, service.log[-3000:]
