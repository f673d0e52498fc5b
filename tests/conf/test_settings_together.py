"""Settings that are refused because of others: equal names, times that do not fit, taken ports, Spark options."""

from __future__ import annotations

from typing import Any

import pytest

from conf.load import load_settings
from conf.spark_options import CHECKPOINT_FILE_MANAGER, FIXED_OPTIONS, TABLE_DEFAULTS
from tests.conf.setting_failure import failure


def test_equal_header_names_are_refused() -> None:
    assert "[headers]: allowed is four different names" in failure("headers.deliver_at=x", "headers.deliver_to=x")


def test_a_trigger_may_be_as_long_as_the_horizon_and_no_longer() -> None:
    assert load_settings(None, ["clock.trigger=5s", "clock.horizon=5s"], {}).clock.trigger == 5_000
    assert "clock.trigger: allowed is a duration up to" in failure("clock.trigger=5001ms", "clock.horizon=5s")


def test_a_slice_may_be_a_quarter_of_a_transactions_time_and_no_longer() -> None:
    timeout = "release.transaction_timeout=4s"
    assert load_settings(None, [timeout, "release.slice=1s"], {}).release.slice == 1_000
    assert "release.slice: allowed is a duration up to a quarter of" in failure(timeout, "release.slice=1001ms")


def test_a_lead_and_a_slice_may_be_half_of_a_transactions_time_and_no_longer() -> None:
    timeout = "release.transaction_timeout=1s"
    assert load_settings(None, [timeout, "release.lead=480ms"], {}).release.lead == 480
    for wrong in (["release.lead=481ms"], ["release.lead=480ms", "release.slice=21ms"], ["release.lead=10s"]):
        assert "release.lead: release.lead and release.slice together must not exceed half" in failure(timeout, *wrong)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ["monitor.job=127.0.0.1:9465", "monitor.release=127.0.0.1:9465"],
            "monitor.release = '127.0.0.1:9465': release process 1 of "
            "release.processes would take port 9465, which monitor.job uses",
        ),
        (
            ["monitor.job=0.0.0.0:9467", "monitor.release=localhost:9464", "release.processes=4", "web.address="],
            "monitor.release = 'localhost:9464': release process 4 of "
            "release.processes would take port 9467, which monitor.job uses",
        ),
        (
            ["monitor.release=0.0.0.0:9465", "release.processes=2"],
            "monitor.release = '0.0.0.0:9465': release process 2 of "
            "release.processes would take port 9466, which web.address uses",
        ),
        (
            ["monitor.job=job:9466", "web.address=job:9466"],
            "web.address = 'job:9466': web.address would take port 9466, which monitor.job uses",
        ),
        (
            ["monitor.release=127.0.0.1:65534", "release.processes=4"],
            "monitor.release = '127.0.0.1:65534': allowed are ports up to 65535, and "
            "release process 3 of release.processes would take 65536",
        ),
    ],
)
def test_two_processes_of_a_host_at_one_port_and_ports_that_do_not_exist_are_refused(
    overrides: list[str], text: str
) -> None:
    assert failure(*overrides) == f"bad-setting: {text}"


@pytest.mark.parametrize(
    "overrides",
    [
        ["monitor.job=127.0.0.1:9464", "monitor.release=127.0.0.1:9465"],
        ["monitor.release=127.0.0.1:9467", "release.processes=64"],
        ["monitor.release=127.0.0.1:65534", "release.processes=2"],
        # Any free port, nowhere, other hosts, and release processes that the job does not start.
        ["monitor.job=127.0.0.1:0", "monitor.release=127.0.0.1:0", "web.address=127.0.0.1:0", "release.processes=2"],
        ["monitor.release=127.0.0.1:9465", "release.processes=2", "web.address="],
        ["monitor.job=job:9466", "web.address=0.0.0.0:9466"],
        ["monitor.job=0.0.0.0:9464", "monitor.release=0.0.0.0:9464", "release.processes=0"],
    ],
)
def test_ports_that_do_not_overlap_are_accepted(overrides: list[str]) -> None:
    load_settings(None, overrides, {})


@pytest.mark.parametrize("name", FIXED_OPTIONS)
def test_an_option_of_spark_that_the_service_rests_on_is_refused(toml: Any, name: str) -> None:
    # Also with Delayline's own value: a later version may need another one.
    for text in (
        failure(f"spark.{name}=true"),
        failure(environ={f"DELAYLINE_SPARK__{name}": "true"}),
        failure(file=toml(f"[spark]\n{name} = true")),
    ):
        assert text == f"bad-setting: [spark]: allowed is no {name}, {FIXED_OPTIONS[name]}"


def test_properties_for_all_new_tables_are_refused() -> None:
    text = failure(f"spark.{TABLE_DEFAULTS}appendOnly=true")
    assert text.startswith(f"bad-setting: [spark]: allowed is no {TABLE_DEFAULTS}appendOnly: the table of sealed ")


def test_every_option_of_spark_that_is_refused_is_named_at_once() -> None:
    text = failure("spark.spark.sql.shuffle.partitions=3", "spark.spark.sql.extensions=x.Y", "spark.spark.ui.port=1")
    assert "spark.sql.shuffle.partitions, which follows from bucket.shards" in text
    assert "; no spark.sql.extensions, " in text
    assert "ui.port" not in text


def test_the_class_that_writes_the_checkpoint_is_refused_on_s3_alone() -> None:
    manager = f"spark.{CHECKPOINT_FILE_MANAGER}=org.example.Manager"
    assert f"[spark]: {CHECKPOINT_FILE_MANAGER} is not allowed" in failure(manager, "storage.path=s3a://bucket/x")
    settings = load_settings(None, [manager, "storage.path=abfss://a@b/x"], {})
    assert settings.spark.options[CHECKPOINT_FILE_MANAGER] == "org.example.Manager"


def test_looped_topics_are_refused() -> None:
    assert "topics.output = 'delayline-in'" in failure("topics.output=delayline-in")
