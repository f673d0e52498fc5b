"""The command line, in process and as real processes against a real broker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from kafka.admin import KafkaAdminClient
from typer.main import get_command
from typer.testing import CliRunner, Result

from conf.settings import Settings
from streaming.cli.app import app
from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually
from tests.unreadable_headers import write_unreadable

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "streaming.cli"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("DELAYLINE_")}


def run(settings: Settings, *args: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, [*args, *options(settings)], input=stdin, env={"DELAYLINE_CONFIG": None})


def options(settings: Settings) -> list[str]:
    """Return the options that select the test's broker and topics."""
    sets = [
        f"kafka.bootstrap_servers={settings.kafka.bootstrap_servers}",
        f"application_id={settings.application_id}",
        f"topics.input={','.join(settings.topics.input)}",
        f"topics.output={settings.topics.output}",
        f"topics.dead_letter={settings.topics.dead_letter}",
    ]
    return [part for one in sets for part in ("--set", one)]


def start(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *args],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def json_lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def options_of(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Yield each command at or below `command`, with its options."""
    if not hasattr(command, "commands"):
        yield path, {option for each in command.params for option in each.opts}
    for name, own in getattr(command, "commands", {}).items():
        yield from options_of(own, *path, name)


def test_every_command_that_reads_settings_has_the_common_options() -> None:
    known = dict(options_of(get_command(app)))
    without = {path for path, options in known.items() if not {"--config", "--set"} <= options}
    assert without == {("submit-files",), ("demo",)}
    assert CliRunner().invoke(app, ["--help"]).exit_code == 0


def test_help_of_publish_loads_neither_spark_nor_a_kafka_client() -> None:
    program = (
        "import sys; from typer.testing import CliRunner; from streaming.cli.app import app\n"
        "assert CliRunner().invoke(app, ['publish', '--help']).exit_code == 0\n"
        "print(sorted({'pyspark', 'kafka', 'confluent_kafka', 'pyarrow', 'pandas'} & set(sys.modules)))"
    )
    completed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert completed.stdout == "[]\n"


def test_topics_are_created_and_shown(settings: Settings) -> None:
    missing = run(settings, "topics", "show")
    assert missing.exit_code == 1
    assert "error: topic-missing: " in missing.stderr
    first = json_lines(run(settings, "topics", "create", "--partitions", "3", "--format", "json"))
    assert [(topic["role"], topic["partitions"], topic["state"]) for topic in first] == [
        ("input", 3, "created"),
        ("output", 3, "created"),
        ("dead letter", 3, "created"),
        ("results", 3, "created"),
        ("progress", 2, "created"),
        ("lease", 1, "created"),
        ("ready", 2, "created"),
        ("position", 2, "created"),
        ("near", 2, "created"),
        ("claims", 3, "created"),
        ("recalled", 3, "created"),
    ]
    again = run(settings, "topics", "create")
    assert (again.exit_code, again.stdout.count("exists")) == (0, 11)
    assert run(settings, "topics", "show").exit_code == 0


def test_a_progress_topic_with_another_configuration_is_an_error(settings: Settings, admin: KafkaAdminClient) -> None:
    topic = {"num_partitions": 5, "replication_factor": 1}
    admin.create_topics({settings.progress_topic: topic}, wait_for_metadata=True)
    result = run(settings, "topics", "create")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: topic-mismatch: ")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["hello", "--if", "always"], "--replaces"),
        (["--replaces", "delayline-in/0/1"], "one message"),
        (["hello", "--replaces", "delayline-in/0"], "topic/partition/offset"),
        (["hello", "--replaces", "elsewhere/0/1"], "not in topics.input"),
        (["hello", "--replaces", "delayline-in/0/1", "--timeout", "soon"], "--timeout"),
    ],
)
def test_a_replacement_that_makes_no_sense_is_refused_before_anything_is_sent(
    settings: Settings, arguments: list[str], problem: str
) -> None:
    result = run(settings, "publish", *arguments)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_a_published_message_reaches_a_subscriber(prepared: Settings) -> None:
    schedule = ["--after", "10s", "--to", "orders", "--key", "k", "--header", "a=1", "--header", "a=x=y"]
    published = run(prepared, "publish", "hello", *schedule)
    source = prepared.topics.input[0]
    assert (published.exit_code, published.stdout) == (0, f"{source}/0/0\n")
    (record,) = json_lines(
        run(
            prepared,
            "subscribe",
            "--from",
            "beginning",
            "--count",
            "1",
            "--topic",
            source,
            "--format",
            "json",
        )
    )
    received_ms = record.pop("received_ms")
    assert abs(received_ms - time.time() * 1000) < 60_000
    assert record == {
        "id": None,
        "topic": source,
        "partition": 0,
        "offset": 0,
        "key": "k",
        "value": "hello",
        "headers": [["deliver-after", "10s"], ["deliver-to", "orders"], ["a", "1"], ["a", "x=y"]],
        "deliver_at_ms": None,
        "lateness_ms": None,
    }


def test_each_line_of_standard_input_is_a_message(prepared: Settings) -> None:
    published = run(prepared, "publish", "--at", "0", stdin="one\n\nthree")
    source = prepared.topics.input[0]
    assert published.stdout.splitlines() == [f"{source}/0/{offset}" for offset in range(3)]
    args = ["subscribe", "--from", "beginning", "--count", "3", "--topic", source, "--format", "json"]
    assert [record["value"] for record in json_lines(run(prepared, *args))] == ["one", "", "three"]


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--after", "soon"], "bad-deliver-after"),
        (["--at", "tomorrow"], "bad-deliver-at"),
        (["--level", "high"], "bad-delay-level"),
        (["--to", ""], "bad-deliver-to"),
        (["--after", "1s", "--level", "1"], "two-delays"),
        (["--repeat", "often"], "bad-repeat"),
        (["--repeat", "every 10m", "--repeat-zone", "Europe/Berlin"], "bad-repeat"),
        (["--repeat", "every 10m", "--repeat-until", "later"], "bad-repeat"),
        (["--repeat", "every 10m", "--repeat-until", "2020-01-01T00:00:00Z"], "bad-repeat"),
        (["--repeat", "every 10m", "--at", "2031-01-01T00:00Z", "--repeat-until", "2030-12-31T00:00Z"], "bad-repeat"),
        (["--repeat", "every 10m", "--after", "1h", "--repeat-until", "2026-01-01T00:00Z"], "bad-repeat"),
        (["--repeat-count", "3"], "bad-repeat"),
        (["--after", "\udcff"], "bad-deliver-after"),
        (["--to", "\udcff"], "bad-deliver-to"),
        (["--header", "novalue"], "bad-usage"),
        (["--header", "\udcff=1"], "bad-usage"),
        (["--topic", "\udcff"], "bad-usage"),
        (["--partition", "9"], "bad-usage"),
        (["--set", "bucket.shards=0"], "bad-setting"),
    ],
)
def test_an_invalid_message_is_refused_before_anything_is_sent(prepared: Settings, args: list[str], code: str) -> None:
    refused = run(prepared, "publish", "x", *args)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"error: {code}: ")
    assert run(prepared, "publish", "first").stdout.endswith("/0/0\n")


def test_a_message_that_repeats_is_published_with_its_rule(prepared: Settings) -> None:
    rule = ["--repeat", "0 9 * * MON-FRI", "--repeat-zone", "Europe/Berlin", "--repeat-until", "2031-01-01T00:00:00Z"]
    published = run(prepared, "publish", "x", *rule, "--repeat-count", "2", "--repeat-missed", "all")
    assert published.exit_code == 0
    assert re.fullmatch(r"next ([-0-9]+T0[78]:00:00.000Z(, |\n)){2}", published.stderr)
    source = prepared.topics.input[0]
    args = ["subscribe", "--from", "beginning", "--count", "1", "--topic", source, "--format", "json"]
    (record,) = json_lines(run(prepared, *args))
    assert record["headers"] == [
        ["delayline-repeat", "0 9 * * MON-FRI"], ["delayline-repeat-zone", "Europe/Berlin"],
        ["delayline-repeat-until", "2031-01-01T00:00:00Z"], ["delayline-repeat-count", "2"],
        ["delayline-repeat-missed", "all"],
    ]  # fmt: skip


def test_a_bad_schedule_can_be_sent_on_purpose(prepared: Settings) -> None:
    # Python reads a byte that is not UTF-8 in an argument as such a surrogate.
    sent = run(prepared, "publish", "x", "--after", "\udcff", "--level", "1", "--unchecked")
    assert (sent.exit_code, sent.stdout.count("\n")) == (0, 1)


def test_delivered_bytes_are_shown_exactly(prepared: Settings, broker: EmbeddedBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    headers = [
        ("delayline-id", b"in/0/7"),
        ("delayline-deliver-at", b"1000"),
        ("n", None),
        ("b", b"\xff\x00"),
    ]
    producer.produce(prepared.topics.output, b"\xff", "\N{SNOWMAN}\x00", headers=list(headers))
    producer.flush()
    (record,) = json_lines(run(prepared, "subscribe", "--from", "beginning", "--count", "1", "--format", "json"))
    assert (record["id"], record["deliver_at_ms"]) == ("in/0/7", 1000)
    assert record["lateness_ms"] == record["received_ms"] - 1000
    assert (record["key"], record["value"]) == ("\N{SNOWMAN}\x00", {"base64": "/w=="})
    assert record["headers"][2:] == [["n", None], ["b", {"base64": "/wA="}]]
    table = run(prepared, "subscribe", "--from", "beginning", "--count", "1")
    heading, row = table.stdout.splitlines()
    assert heading.split() == ["received", "lateness", "topic/partition/offset", "id", "key", "value"]
    assert "in/0/7" in row
    # A terminal would execute a control character.
    assert "\x00" not in row


def test_a_record_whose_headers_cannot_be_read_is_shown_and_that_is_said(
    prepared: Settings, broker: EmbeddedBroker
) -> None:
    output = prepared.topics.output
    offset = write_unreadable(broker.bootstrap, output, b"v", headers=[("delayline-id", b"in/0/7")])
    shown = run(prepared, "subscribe", "--from", "beginning", "--count", "1", "--format", "json")
    (record,) = json_lines(shown)
    assert (record["value"], record["headers"], record["id"]) == ("v", None, None)
    said = f"{output}/0/{offset}: the headers cannot be read, because the name of one is not UTF-8"
    assert shown.stderr.splitlines() == ["subscribed", said]


def test_a_count_that_is_not_reached_gives_exit_code_1(prepared: Settings) -> None:
    short = run(prepared, "subscribe", "--count", "1", "--timeout", "100ms")
    assert (short.exit_code, short.stderr.splitlines()) == (1, ["subscribed", "0 of 1 messages after 100ms"])
    assert run(prepared, "subscribe", "--timeout", "100ms").exit_code == 0
    assert run(prepared, "subscribe", "--timeout", "soon").exit_code == 2
    assert run(prepared, "subscribe", "--topic", "\udcff").exit_code == 2


def test_a_subscriber_misses_nothing_after_it_has_printed_subscribed(prepared: Settings) -> None:
    subscriber = start("subscribe", "--count", "1", "--timeout", "30s", "--format", "json", *options(prepared))
    assert subscriber.stderr is not None
    assert subscriber.stderr.readline() == "subscribed\n"
    sent = run(prepared, "publish", "at once", "--topic", prepared.topics.output)
    stdout, _ = subscriber.communicate(timeout=60)
    assert (sent.exit_code, subscriber.returncode) == (0, 0)
    assert json.loads(stdout)["value"] == "at once"


def test_ctrl_c_gives_exit_code_130_without_a_traceback(prepared: Settings) -> None:
    subscriber = start("subscribe", *options(prepared))
    assert subscriber.stderr is not None
    assert subscriber.stderr.readline() == "subscribed\n"
    subscriber.send_signal(signal.SIGINT)
    _, stderr = subscriber.communicate(timeout=60)
    assert (subscriber.returncode, stderr) == (130, "")


def test_an_unreachable_broker_gives_exit_code_1_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sinks.topics.admin_client", "sources.publisher"):
        monkeypatch.setattr(f"{module}.CONNECT_TIMEOUT_MS", 500)
    monkeypatch.setattr("sources.subscriber.CONNECT_TIMEOUT_S", 0.5)
    for command in (["topics", "show"], ["publish", "x"], ["subscribe"]):
        result = CliRunner().invoke(app, [*command, "--set", "kafka.bootstrap_servers=127.0.0.1:1"])
        assert result.exit_code == 1
        assert result.stderr.startswith("error: broker-unreachable: ")
        assert "127.0.0.1:1" in result.stderr


def _stops(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> str:
    """End a process that runs, and return its log."""
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    return stderr


@pytest.mark.parametrize(
    ("command", "number"), [("release", signal.SIGTERM), ("release", signal.SIGINT), ("forward", signal.SIGTERM)]
)
def test_a_release_process_or_a_forwarder_goes_on_until_a_signal(prepared: Settings, command: str, number: int) -> None:
    process = start(command, "--name", "north", *options(prepared))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        assert process.poll() is None
        assert "Traceback" not in _stops(process, number)
    finally:
        process.kill()


@pytest.mark.thorough
@pytest.mark.takes(8)
def test_the_first_of_two_release_processes_with_one_name_ends_with_an_error(prepared: Settings) -> None:
    first = start("release", "--name", "north", *options(prepared))
    other = start("release", "--name", "south", *options(prepared))
    try:
        assert first.stderr is not None
        # It has joined the group.
        while " to north" not in first.stderr.readline():
            assert first.poll() is None
        second = start("release", "--name", "north", *options(prepared))
        try:
            _, stderr = first.communicate(timeout=60)
            assert first.returncode == 1
            assert "error: name-taken: another release process has taken the name north" in stderr
            assert "Traceback" not in stderr
            assert second.stdout is not None
            assert second.stdout.readline() == "running\n"
            _stops(second)
        finally:
            second.kill()
        _stops(other)
    finally:
        first.kill()
        other.kill()


def test_a_release_process_without_topics_is_an_error(settings: Settings) -> None:
    process = start("release", *options(settings))
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "error: topic-missing: " in stderr
    refused = CliRunner().invoke(app, ["release", "--name", "\udcff", *options(settings)])
    assert refused.exit_code == 2


@pytest.mark.usefixtures("java")
def test_the_broker_command_serves_until_sigterm(tmp_path: Path) -> None:
    node = start("broker", "--dir", str(tmp_path), "--port", "0")
    try:
        assert node.stdout is not None
        line = node.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:")
        servers = f"kafka.bootstrap_servers={line.split()[-1]}"
        shown = CliRunner().invoke(app, ["topics", "show", "--set", servers])
        assert shown.stderr.startswith("error: topic-missing: ")
        node.send_signal(signal.SIGTERM)
        _, stderr = node.communicate(timeout=60)
        assert (node.returncode, stderr.splitlines()) == (0, [f"starting in {tmp_path}"])
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    finally:
        node.kill()


@pytest.mark.usefixtures("java")
def test_a_broker_that_dies_is_an_error_with_its_log(tmp_path: Path) -> None:
    node = start("broker", "--dir", str(tmp_path), "--port", "0")
    try:
        assert node.stdout is not None
        assert node.stdout.readline().startswith("listening on ")
        (java,) = assert_eventually(lambda: _children(node.pid), what="the broker's process")
        os.kill(java, signal.SIGKILL)
        _, stderr = node.communicate(timeout=60)
        assert node.returncode == 1
        assert "error: broker-failed: " in stderr
    finally:
        node.kill()


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(
    ("option", "value", "quoted"),
    [
        ("--dir", "a-file", "a-file"),
        ("--dir", "a-file/below", "a-file"),
        ("--dir", "long" * 100, "too long"),
        ("--host", "no-such-host.invalid", "no-such-host.invalid"),
        ("--host", "192.0.2.1", "192.0.2.1"),
        ("--host", "two..dots", "two..dots"),
    ],
)
def test_a_broker_that_cannot_use_its_options_is_an_error_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: str, quoted: str
) -> None:
    monkeypatch.chdir(tmp_path)
    # Handlers would remain installed in the test's process.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "a-file").touch()
    _assert_error_sentence(CliRunner().invoke(app, ["broker", option, value]), 1, "broker-failed", quoted)


def test_a_host_that_is_not_utf_8_is_bad_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    _assert_error_sentence(CliRunner().invoke(app, ["broker", "--host", "\udcff"]), 2, "bad-usage", "--host")


@pytest.mark.parametrize("keep", ["a-file", "a-file/below", "full"])
def test_a_demo_needs_a_folder_that_is_new_or_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").touch()
    (tmp_path / "full/of").mkdir(parents=True)
    _assert_error_sentence(CliRunner().invoke(app, ["demo", "--keep", keep]), 2, "bad-usage", keep)


def _assert_error_sentence(result: Result, exit_code: int, error: str, quoted: str) -> None:
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == exit_code
    sentence = result.stderr.splitlines()[-1]
    assert sentence.startswith(f"error: {error}: ")
    assert quoted in sentence


def _children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


def test_existing_jars_are_kept(settings: Settings) -> None:
    result = CliRunner().invoke(app, ["jars"])
    assert result.exit_code == 0
    assert result.stdout.count("complete") == 2


@pytest.mark.parametrize(
    ("command", "quoted"),
    [
        (["topics", "create"], ["progress, ready, position and near", "claims and recalled", "lease", "one partition"]),
        (["topics", "show"], ["cleanup.policy than compact", "a limited retention"]),
        (["publish"], ["1, 2, ...; 0 means no delay"]),
    ],
)
def test_help_describes_the_checks_and_the_created_topics(command: list[str], quoted: list[str]) -> None:
    help_text = " ".join(CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).stdout.split())
    assert not [words for words in quoted if words not in help_text]


def test_plan_prints_what_a_load_takes_and_refuses_what_is_no_load() -> None:
    asked = ["plan", "--rate", "1000", "--spread", "30d", "--size", "1000"]
    table = CliRunner().invoke(app, asked, env={"DELAYLINE_CONFIG": None})
    assert table.exit_code == 0
    assert f"{'messages that wait':<36}{1000 * 15 * 86_400:>14,}" in table.output
    answer = json.loads(CliRunner().invoke(app, [*asked, "--format", "json"], env={"DELAYLINE_CONFIG": None}).output)
    assert (answer["spread_s"], answer["retention_s"], answer["waiting"]) == (30 * 86_400, 7 * 86_400, 1_296_000_000)
    for option, value in (
        ("--rate", "nan"),
        ("--rate", "-1"),
        ("--rate", "inf"),
        ("--spread", "a while"),
        ("--size", "-1"),
    ):
        refused = CliRunner().invoke(app, [*asked, option, value], env={"DELAYLINE_CONFIG": None})
        assert refused.exit_code == 2, refused.output
        assert option in refused.output
