"""The move of docs/operate/move.md, from one broker to another."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from conf.load import load_settings
from sinks.topics.topics import ensure_topics
from streaming.judge.outputs import Outputs
from streaming.judge.record import Received
from tests.eventually import assert_eventually
from tests.quick_java import quick_broker
from tests.system.checkpoint_files import accepted
from tests.system.conftest import Application
from tests.system.service import Service

_SCRIPT = Path(__file__).parent.parent.parent / "examples" / "python" / "move.py"
_COUNT, _LONGEST_S = 600, 100
# The value of a message that repeats, and how often it comes: for a little longer than that.
_REPEATING, _EVERY_S, _TIMES = b"%d" % _COUNT, 10, 11


def publish(application: Application) -> dict[bytes, int]:
    """Publish messages due within `_LONGEST_S`, a third to the other topic; return the first due time of each value."""
    producer = Producer({"bootstrap.servers": application.bootstrap})
    dues: dict[bytes, int] = {}
    for number in range(_COUNT + 1):
        stamp_ms, delay_ms = time.time_ns() // 1_000_000, 500 + _LONGEST_S * 1000 * number // _COUNT
        value = b"%d" % number
        rule: list[tuple[str, str | bytes | None]] = []
        if value == _REPEATING:
            delay_ms = _EVERY_S * 1000
            rule = [("delayline-repeat", b"every %ds" % _EVERY_S), ("delayline-repeat-count", b"%d" % _TIMES)]
            # So it comes as often, however long nobody delivers.
            rule.append(("delayline-repeat-missed", b"all"))
        dues[value] = stamp_ms + delay_ms
        headers: list[tuple[str, str | bytes | None]] = [("deliver-after", b"%dms" % delay_ms), ("own", value), *rule]
        headers += [("deliver-to", application.other.encode())] if number % 3 == 0 else []
        producer.produce(
            application.input, value, b"k%d" % (number % 7), number % 2, headers=headers, timestamp=stamp_ms
        )
    assert producer.flush(60) == 0
    return dues


def move(application: Application, old: Service, new: Service) -> subprocess.CompletedProcess[str]:
    """Run the script with the settings of both services, in files as it takes them."""
    files = {name: application.folder / f"{name}.toml" for name in ("old", "new")}
    for file, service in zip(files.values(), (old, new), strict=True):
        file.write_text("\n".join(map(_as_toml, service.overrides)))
    command = [sys.executable, str(_SCRIPT), "--config", str(files["old"]), "--to", str(files["new"])]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.thorough
@pytest.mark.takes(170)
def test_what_waits_comes_out_once_and_on_time_in_the_new_cluster(application: Application, tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(quick_broker(tmp_path / "new-broker"))
        overrides = application.overrides("policies.repeats=true")
        old = Service(application.folder, overrides)
        stack.callback(old.kill)
        other_storage = [f"kafka.bootstrap_servers={broker.bootstrap}", f"storage.path={tmp_path / 'new-storage'}"]
        (tmp_path / "new").mkdir()
        new = Service(tmp_path / "new", _replaced(overrides, other_storage))
        stack.callback(new.kill)
        received: list[Received] = []
        for service in (old, new):
            settings = load_settings(None, service.overrides, environ={})
            ensure_topics(settings, partitions=2)
            topics = [application.output, application.other, application.dead]
            stack.callback(Outputs(settings.kafka.bootstrap_servers, topics, received.append).close)
        old.start()
        dues = publish(application)
        assert_eventually(lambda: accepted(application.checkpoint) == len(dues), 60)
        old.kill()
        old.start()
        assert_eventually(lambda: len(received) > 50, 60)
        assert old.stop() == 0, old.log[-3000:]
        limited = Service(new.folder, [*new.overrides, "policies.max_waiting=1000"])
        refused = move(application, old, limited)
        assert refused.returncode == 1
        assert "leave it out until the new job has read them" in refused.stderr
        without = Service(new.folder, _replaced(new.overrides, ["policies.repeats=false"]))
        refused = move(application, old, without)
        assert refused.returncode == 1
        assert "bad-repeat: delayline-repeat has no meaning on this topic" in refused.stderr
        moved = move(application, old, new)
        assert moved.returncode == 0, moved.stderr
        in_old = {record.value for record in received} - {_REPEATING}
        assert 0 < len(in_old) < _COUNT, "some messages should come out in each cluster"
        assert moved.stdout == f"{_COUNT - len(in_old) + 1} messages were published\n"
        again = move(application, old, new)
        assert (again.returncode, "have records" in again.stderr) == (1, True)
        new.start()
        assert_eventually(lambda: len(received) >= _COUNT + _TIMES, 120)
        assert new.stop() == 0, new.log[-3000:]
    assert sorted(record.value or b"" for record in received) == sorted([*dues, *[_REPEATING] * (_TIMES - 1)])
    for record in received:
        value = record.value or b""
        assert record.topic == (application.other if int(value) % 3 == 0 else application.output)
        assert record.received_ms >= dues[value]
        assert record.key == b"k%d" % (int(value) % 7)
        assert ("own", value) in record.headers


def _as_toml(override: str) -> str:
    key, value = override.split("=", 1)
    section, _, name = key.partition(".")
    return f'{section}."{name}" = "{value}"' if name else f'{key} = "{value}"'


def _replaced(overrides: list[str], others: list[str]) -> list[str]:
    keys = {other.split("=")[0] for other in others}
    return [override for override in overrides if override.split("=")[0] not in keys] + others
