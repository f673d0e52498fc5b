"""The programs of examples/, run as their readers run them: against a broker and the job."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from conf.java.command import java_command
from conf.java.jars.installed import broker_jars
from tests.eventually import assert_eventually
from tests.system.checkpoint_files import accepted
from tests.system.conftest import Application, MakeService

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
_VALUES = ["at once", "after two seconds", "at an instant"]


def run(command: list[str], *arguments: str) -> list[str]:
    """Run a program until it ends, and return the lines of its output."""
    result = subprocess.run([*command, *arguments], cwd=EXAMPLES, capture_output=True, text=True, timeout=90)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.mark.thorough
@pytest.mark.takes(30)
def test_consumers_in_python_and_java_receive_the_messages_of_producers_in_both(
    application: Application, make_service: MakeService
) -> None:
    service, _ = make_service()
    python = [sys.executable]
    jars = [str(jar) for jar in broker_jars() if re.match("kafka-clients|slf4j-api", jar.name)]
    java = [java_command(), "-cp", ":".join(jars)]
    service.start()
    published = [
        *run([*python, "python/producer.py"], application.bootstrap, application.input),
        *run([*java, "java/DelayedProducer.java"], application.bootstrap, application.input),
    ]
    assert len(set(published)) == len(published) == 2 * len(_VALUES)
    for program in ([*python, "python/consumer.py"], [*java, "java/DelayedConsumer.java"]):
        lines = run(program, application.bootstrap, application.output, str(len(published)))
        received = [re.fullmatch(r"(.+?)  (-?\d+) ms late  (\S+)", line) for line in lines]
        assert sorted(match[3] for match in received if match) == sorted(published), lines
        assert sorted(match[1] for match in received if match) == sorted(2 * _VALUES)
        assert all(int(match[2]) >= 0 for match in received if match), lines
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
def test_what_waits_can_be_asked_in_sql_and_exported(
    application: Application, make_service: MakeService, tmp_path: Path
) -> None:
    service, ledger = make_service()
    service.start()
    for number in range(3):
        headers = [("deliver-after", b"2h")]
        ledger.publish(
            application.input, b"four", headers, output=application.output, delay_ms=7_200_000, partition=number % 2
        )
    ledger.flush()
    assert_eventually(lambda: accepted(application.checkpoint) == 3, 60)
    assert service.stop() == 0, service.log[-3000:]
    options = [part for override in service.overrides for part in ("--set", override)]
    lines = run([sys.executable, "python/waiting.py"], *options, "--export", str(tmp_path / "waiting"))
    counts = [line.split("|") for line in lines if application.output in line]
    assert sum(int(cells[4]) for cells in counts) == 3
    assert sum(int(cells[5]) for cells in counts) == 12
    exported = pyarrow.parquet.read_table(tmp_path / "waiting").to_pylist()
    assert {row["id"] for row in exported} == ledger.sent.keys()
