"""Looking at waiting messages: the DataFrame and `delayline peek` show what waits, and nothing else."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conf.load import load_settings
from state.message_ids import parse_id
from streaming.local.free_port import free_port
from streaming.status.look import Look, message_fields
from streaming.status.look_reader import LookReader, NotThroughTheJob, look_through_job
from streaming.status.messages import waiting_messages
from tests.eventually import assert_eventually
from tests.system.checkpoint_files import accepted
from tests.system.conftest import Application
from tests.system.in_process.conftest import MakeJob

pytestmark = pytest.mark.system

HOUR_MS = 3_600_000


@pytest.mark.thorough
@pytest.mark.takes(40)
def test_all_that_waits_is_shown_where_it_waits_and_what_is_cancelled_is_not(
    application: Application, make_job: MakeJob, spark: SparkSession
) -> None:
    # Messages due within ten minutes are staged, and wait in the ready log when the job has ended.
    job, ledger = make_job("clock.horizon=10m", f"monitor.job=127.0.0.1:{free_port()}")
    settings = load_settings(None, job.overrides, environ={})
    through_job = list[dict[str, Any]]()
    delays_ms = [540_000] * 20 + [HOUR_MS + 1_000 * number for number in range(300)]

    def publish() -> None:
        for number, delay_ms in enumerate(delays_ms):
            headers = [("deliver-after", str(delay_ms).encode()), ("number", b"\xff%d" % number)]
            key = None if number % 3 else str(number % 10).encode()
            value = None if number == 7 else b"value %d" % number
            ledger.publish(
                application.input,
                value,
                headers,
                key=key,
                output=application.output,
                delay_ms=delay_ms,
                name=str(number),
            )
        ledger.flush()
        assert_eventually(lambda: accepted(application.checkpoint) == len(delays_ms), 60)
        for identity, name in list(ledger.names.items()):
            if name in ("100", "319"):
                ledger.cancel(identity)
        ledger.flush()
        ledger.wait_for(lambda: len(ledger.cancelled()) == 2, 60)
        # The storage reflects the answers once their batch is committed.
        assert_eventually(lambda: look_through_job(settings, Look(limit=1_000)).num_rows == 318, 30)
        through_job.extend(look_through_job(settings, Look(limit=1_000)).to_pylist())
        with pytest.raises(NotThroughTheJob, match="of another application"):
            look_through_job(settings.model_copy(update={"application_id": "another"}), Look())

    job.run_until(publish)
    waiting_ids = ledger.sent.keys() - ledger.cancelled()
    assert len(waiting_ids) == 318

    rows = {row["id"]: row for row in waiting_messages(spark, settings).collect()}
    assert rows.keys() == waiting_ids
    assert {row["place"] for row in rows.values()} == {"ready", "mutable", "sealed"}
    for identity, row in rows.items():
        sent = ledger.sent[identity]
        assert sent.deliver_at_ms is not None
        assert (row["deliver_at_ms"], row["key"], row["value"]) == (sent.deliver_at_ms, sent.key, sent.value)
        assert [(header["key"], bytes(header["value"])) for header in row["headers"]] == list(sent.headers)
        assert (row["output_topic"], row["error_code"]) == (application.output, None)
        assert int(row["deliver_at"].timestamp() * 1000) == row["deliver_at_ms"]
        assert (row["place"] == "ready") == (sent.deliver_at_ms - sent.timestamp_ms == 540_000)
    by_due = sorted(rows, key=lambda identity: (rows[identity]["deliver_at_ms"], parse_id(identity)))
    # The job, while it ran, has shown the same.
    assert [row["id"] for row in through_job] == by_due
    for seen in through_job:
        kept = rows[seen["id"]]
        assert (seen["deliver_at_ms"], seen["key"], seen["value"]) == (
            kept["deliver_at_ms"],
            kept["key"],
            kept["value"],
        )
        assert [tuple(header.values()) for header in seen["headers"]] == [
            (header["key"], bytes(header["value"])) for header in kept["headers"]
        ]

    def peek(*arguments: str) -> list[dict[str, Any]]:
        result = job.command("peek", "--format", "json", *arguments)
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    assert [shown["id"] for shown in peek("--limit", "50")] == by_due[:50]
    first_ms, last_ms = rows[by_due[200]]["deliver_at_ms"], rows[by_due[210]]["deliver_at_ms"]
    shown = peek("--due-from", str(first_ms), "--due-until", str(last_ms))
    assert {each["id"] for each in shown} == {
        identity for identity, row in rows.items() if first_ms <= row["deliver_at_ms"] < last_ms
    }
    assert {each["key"] for each in peek("--key", "3", "--limit", "1000")} == {"3"}
    newest = peek("--newest", "--limit", "1")[0]
    assert newest["timestamp_ms"] == max(row["timestamp_ms"] for row in rows.values())
    assert peek("--topic", application.other) == []

    some = [by_due[0], by_due[-1]]
    by_id = peek(*some)
    assert [each["id"] for each in by_id] == some
    assert by_id[0]["headers"][1][1] == {"base64": b64encode(b"\xff" + ledger.names[some[0]].encode()).decode()}
    cancelled = sorted(ledger.cancelled())
    result = job.command("peek", some[0], cancelled[0])
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, f"1 of 2 do not wait: {cancelled[0]}")
    assert some[0] in result.stdout


@pytest.mark.thorough
@pytest.mark.takes(30)
def test_rule_and_next_three_instants_of_a_message_that_repeats_are_shown(
    application: Application, make_job: MakeJob
) -> None:
    job, ledger = make_job("policies.repeats=true")

    def publish() -> None:
        rule = [("delayline-repeat", b"0 9 1 1 *"), ("delayline-repeat-zone", b"Europe/Berlin")]
        # Longer than what the page shows of headers.
        ledger.publish(application.input, b"v", [*rule, ("note", b"n" * 3_000)], output=application.output)
        ledger.flush()
        assert_eventually(lambda: accepted(application.checkpoint) == 1, 60)

    job.run_until(publish)
    # The ledger would expect one delivery.
    ledger.close()
    year = (datetime.now(UTC) - timedelta(hours=8)).year
    instants = [f"{year + after}-01-01T08:00:00.000Z" for after in (1, 2, 3)]
    (shown,) = map(json.loads, job.command("peek", "--format", "json").stdout.splitlines())
    assert shown["repeat"] == {"rule": "0 9 1 1 * (Europe/Berlin)", "number": 1, "next": instants}
    assert shown["deliver_at"] == instants[0]
    assert shown["headers"] == [["note", "n" * 3_000]]
    lines = job.command("peek").stdout.splitlines()
    assert lines[-1] == f"    repeats 0 9 1 1 * (Europe/Berlin), occurrence 1, next {', '.join(instants)}"
    settings = load_settings(None, job.overrides, environ={})
    with LookReader(settings) as reader:
        (row,) = reader.look(Look(shown_bytes=2_000)).to_pylist()
    assert row["is_cut"]
    assert message_fields(row)["repeat"] == shown["repeat"]


def test_before_the_first_batch_nothing_waits(application: Application, make_job: MakeJob) -> None:
    job, _ = make_job()
    result = job.command("peek", "--format", "json")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.splitlines()[0] == "starting Spark to read the storage: monitor.job is not set"


def test_an_id_of_another_topic_and_an_empty_range_are_refused(application: Application, make_job: MakeJob) -> None:
    job, _ = make_job()
    result = job.command("peek", "other/0/1")
    assert (result.exit_code, "other is not in topics.input" in result.stderr) == (2, True)
    result = job.command("peek", "--due-from", "2h", "--due-until", "1h")
    assert (result.exit_code, "--due-until 1h" in result.stderr) == (2, True)
