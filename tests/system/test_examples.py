"""The programs of examples/, run as their readers run them: against a broker and the job."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conf.java.jars import broker_jars, java_command
from tests.system.conftest import Application, MakeService

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
_VALUES = ["at once", "after two seconds", "at an instant"]


def run(command: list[str], *arguments: str) -> list[str]:
    """Run a program until it ends, and return the lines of its output."""
    result = subprocess.run([*command, *arguments], cwd=EXAMPLES, capture_output=True, text=True, timeout=90)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


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
