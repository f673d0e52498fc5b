from __future__ import annotations

import logging
import re
import tomllib
import traceback
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conf.errors import SettingError
from conf.load import load_settings
from conf.setting_types import OptionTable
from conf.settings import Settings
from conf.spark_options import CHECKPOINT_FILE_MANAGER, FIXED_OPTIONS, TABLE_DEFAULTS

SECRET = "hunter2"
DEFAULT_FILE = Path(__file__).parents[2] / "conf" / "delayline.toml"


@pytest.fixture
def toml(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        file = tmp_path / "settings.toml"
        file.write_text(text)
        return file

    return write


def failure(*overrides: str, file: Path | None = None, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingError) as raised:
        load_settings(file, overrides, environ or {})
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    return str(raised.value)


# The default file


def test_the_default_file_has_exactly_the_built_in_defaults() -> None:
    assert load_settings(DEFAULT_FILE, environ={}) == load_settings(environ={}) == Settings()


def test_the_default_file_has_every_key_and_a_comment_above_it() -> None:
    table = tomllib.loads(DEFAULT_FILE.read_text())
    written = {f"{section}.{key}" for section, keys in table.items() if isinstance(keys, dict) for key in keys}
    known = {
        f"{section}.{key}"
        for section, field in Settings.model_fields.items()
        for key in getattr(field.annotation, "model_fields", {})
    }
    assert written == known | {"spark.spark.master"}
    assert "application_id" in table
    lines = DEFAULT_FILE.read_text().splitlines()
    for above, line in pairwise(lines):
        if re.match(r'["a-z_.]+ = ', line):
            assert above.startswith("# "), line


# Precedence


def test_the_environment_overrides_the_file_and_set_overrides_both(toml: Any) -> None:
    file = toml('application_id = "f"\n[bucket]\nshards = 3\nmax_messages = 30\nmax_bytes = 3000')
    environ = {"DELAYLINE_BUCKET__MAX_MESSAGES": "40", "DELAYLINE_BUCKET__MAX_BYTES": "4000"}
    settings = load_settings(file, ["bucket.max_bytes=5000"], environ)
    assert settings.application_id == "f"
    assert (settings.bucket.shards, settings.bucket.max_messages, settings.bucket.max_bytes) == (3, 40, 5000)


def test_the_last_of_two_overrides_wins() -> None:
    assert load_settings(None, ["bucket.shards=3", "bucket.shards=4"], {}).bucket.shards == 4


def test_options_of_clients_are_merged_over_all_three_sources(toml: Any) -> None:
    file = toml('[kafka]\nsecurity.protocol = "SSL"\n"client.id" = "f"\n"ssl.ca.location" = "ca.pem"')
    environ = {"DELAYLINE_KAFKA__CLIENT_ID": "e", "DELAYLINE_KAFKA__ssl.crl.location": "crl.pem"}
    settings = load_settings(file, ["kafka.security.protocol=PLAINTEXT"], environ)
    assert settings.kafka.options == {
        "security.protocol": "PLAINTEXT",
        "client.id": "e",
        "ssl.ca.location": "ca.pem",
        "ssl.crl.location": "crl.pem",
    }


def test_the_default_environment_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAYLINE_APPLICATION_ID", "mine")
    assert load_settings().application_id == "mine"
    assert load_settings(environ={}).application_id == "delayline"


# Forms of values


def test_an_override_is_split_at_the_first_dot_and_the_first_equals_sign() -> None:
    settings = load_settings(None, ["spark.spark.master=local[4]", "spark.spark.x=a=b", "storage.path=s3a://b/p.q"], {})
    assert settings.spark.options == {"spark.master": "local[4]", "spark.x": "a=b"}
    assert settings.storage.path == "s3a://b/p.q"


@pytest.mark.parametrize("text", ['["a", "b"]', "['a','b']", "a,b", " a , b "])
def test_a_list_is_read_in_each_of_its_forms(text: str) -> None:
    assert load_settings(None, [f"topics.input={text}"], {}).topics.input == ("a", "b")
    assert load_settings(None, [], {"DELAYLINE_TOPICS__INPUT": text}).topics.input == ("a", "b")


def test_an_empty_text_is_an_empty_list() -> None:
    assert load_settings(None, ["topics.allowed_outputs="], {}).topics.allowed_outputs == ()


def test_a_text_that_looks_like_a_number_stays_text() -> None:
    assert load_settings(None, ["topics.output=123", "application_id=9"], {}).topics.output == "123"


def test_durations_are_stored_in_milliseconds() -> None:
    settings = load_settings(None, ["clock.trigger=2s", "policies.max_delay=PT1H", "levels.delays=1s,2m"], {})
    assert (settings.clock.trigger, settings.policies.max_delay) == (2000, 3_600_000)
    assert settings.levels.delays == (1000, 120_000)


def test_spark_keeps_the_case_of_a_variable_that_is_not_in_capitals() -> None:
    environ = {
        "DELAYLINE_SPARK__spark.executor.memoryOverhead": "1g",
        "DELAYLINE_SPARK__spark_driver_memoryOverhead": "2g",
        "DELAYLINE_SPARK__SPARK_EXECUTOR_CORES": "2",
    }
    options = load_settings(None, [], environ).spark.options
    assert options["spark.executor.memoryOverhead"] == "1g"
    assert options["spark.driver.memoryOverhead"] == "2g"
    assert options["spark.executor.cores"] == "2"


# An error names the key, the value, the allowed values and the origin


@pytest.mark.parametrize(
    ("override", "allowed"),
    [
        ("bucket.shards=two", "a whole number from 1 to 1024"),
        ("bucket.shards=2.0", "a whole number from 1 to 1024"),
        ("bucket.shards=", "a whole number from 1 to 1024"),
        ("bucket.shards=0", "a whole number from 1 to 1024"),
        ("bucket.shards=1025", "a whole number from 1 to 1024"),
        ("bucket.fan_in=1", "a whole number from 2 to 100"),
        ("bucket.fan_in=101", "a whole number from 2 to 100"),
        ("limits.messages_per_trigger=-1", "a whole number from 1 to"),
        ("policies.max_delay=5 parsecs", "a duration from 0ms to 36525d, written as ms"),
        ("policies.max_delay=-1s", "a duration"),
        ("clock.horizon=2h", "a duration from 1s to 1h"),
        ("clock.horizon=500ms", "a duration from 1s to 1h"),
        ("release.transaction_timeout=1h", "a duration from 1s to 15m"),
        ("release.lead=11s", "a duration from 1ms to 10s"),
        ("release.processes=65", "a whole number from 0 to 64"),
        ("release.max_bytes=1000000", "a whole number from 16777216 to "),
        ("topics.output=a b", "a topic name"),
        ("topics.dead_letter=..", "a topic name"),
        ("topics.input=a,b/c", "a topic name"),
        ("topics.input=", "a list of one or more"),
        # No client describes it, so no job with it could start.
        ("topics.input=a,b, a", "each name once, and 'a' is there twice"),
        ('topics.input=["a"', "a list, written as"),
        ("topics.allowed_outputs=a{b}", "a topic name, or a shell pattern"),
        ("application_id=a/b", "1 to 100 of"),
        ("kafka.bootstrap_servers=localhost", "host:port"),
        ("kafka.bootstrap_servers=a:99999", "host:port"),
        ("headers.deliver_at=", "1 character or more"),
        ("headers.deliver_at=delayline-id", "1 character or more, not beginning with"),
        ("storage.path= ", "a local path"),
        ("levels.delays=1s,soon", "a duration"),
        ("policies.repeats=maybe", "true or false"),
        ("policies.repeats=", "true or false"),
        ("topics.skip_expired=2", "true or false"),
    ],
)
def test_an_error_names_key_value_allowed_values_and_origin(override: str, allowed: str) -> None:
    text = failure(override)
    key, _, value = override.partition("=")
    assert text.startswith(f"bad-setting: {key} = ")
    assert f"allowed is {allowed}" in text
    assert text.endswith("(from --set)")
    assert any(repr(part) in text for part in (value, *value.split(","))) or value == ""


def test_an_error_for_a_value_that_is_not_utf_8_names_only_the_key() -> None:
    # Python reads a byte that is not UTF-8 in an argument or variable as such a surrogate.
    value = f"{SECRET}\udcff"
    assert failure(f"kafka.sasl.password={value}") == "bad-setting: --set kafka.sasl.password: allowed is UTF-8 text"
    message = failure(environ={"DELAYLINE_STORAGE__PATH": value})
    assert message == "bad-setting: DELAYLINE_STORAGE__PATH: allowed is UTF-8 text"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[bucket]\nshards = true", "bucket.shards = True"),
        ("[bucket]\nshards = 2.5", "bucket.shards = 2.5"),
        ("[topics]\noutput = 3", "topics.output = 3"),
        ("[topics]\ninput = 3", "topics.input = 3"),
        ("[clock]\ntrigger = 0.5", "clock.trigger = 0.5"),
        ("[kafka]\n'client.id' = ['a']", "kafka.client.id = ['a']"),
        ("[topics.output]\nname = 'x'", "topics.output = {'name': 'x'}"),
        ("bucket = 3", "[bucket]: allowed is a table"),
    ],
)
def test_a_wrong_type_in_the_file_is_named_with_the_file(toml: Any, text: str, key: str) -> None:
    file = toml(text)
    assert failure(file=file).startswith(f"bad-setting: {key}")


def test_an_error_names_the_file_or_variable_of_the_value(toml: Any) -> None:
    file = toml("[bucket]\nshards = 0")
    assert f"(from file {file})" in failure(file=file)
    variable = "DELAYLINE_BUCKET__SHARDS"
    assert f"(from environment variable {variable})" in failure(file=file, environ={variable: "x"})


def test_all_wrong_settings_are_listed_at_once(toml: Any) -> None:
    file = toml("[bucket]\nshards = 0\nsize = 1\n[nowhere]\nx = 1")
    text = failure("policies.max_delay=x", "nothing", file=file, environ={"DELAYLINE_CLOCK__TRIGGR": "1s"})
    for key in (
        "bucket.shards = 0",
        "bucket.size",
        "nowhere",
        "policies.max_delay",
        "nothing",
        "CLOCK__TRIGGR",
    ):
        assert key in text
    assert len(text.splitlines()) == 6


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


# Unknown names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[buckets]\nshards = 2", "buckets: unknown setting; did you mean bucket?"),
        ("[bucket]\nshard = 2", "bucket.shard: unknown setting; did you mean bucket.shards?"),
        ("[bucket]\nmax_delay = 2", "bucket.max_delay: unknown setting; did you mean policies.max_delay?"),
        ("applicationid = 'x'", "applicationid: unknown setting; did you mean application_id?"),
        (
            "[kafka]\n'security.protocl' = 'SSL'",
            "kafka.security.protocl: unknown setting; did you mean kafka.security",
        ),
        ("[kafka]\nbootstrap_server = 'a:1'", "did you mean kafka.bootstrap_servers"),
        ("[spark]\nmaster = 'local'", "[spark]: allowed is keys that begin with 'spark.'"),
        ("[presets]\n'delayline-in' = 'rabbit'", "[presets]: allowed is one or more of activemq, etf1, karafka"),
        ("[presets]\n'delayline-in' = ''", "[presets]: allowed is one or more of"),
        ("[presets]\n'delayline-in' = 'nats,nats'", "[presets]: allowed is one or more of"),
        ("[presets]\n'delayline-in' = '[[\"nats\"]]'", "[presets]: allowed is one or more of"),
        ("[presets]\n'orders' = 'nats'", "presets.orders: allowed are topics in topics.input"),
        ("[rates]\n'delayline-out' = 0", "[rates]: allowed is a whole number from 1 to"),
        ("[rates]\n'delayline-out' = 1.5", "for 'delayline-out'"),
        ("[rates]\n'delayline-out' = 'many'", "for 'delayline-out'"),
        ("[rates]\n'orders' = 1", "rates.orders: allowed are topics.output, topics.allowed_outputs"),
        ("[policies]\ndefault_delay = 'soon'", "policies.default_delay = 'soon': allowed is a duration"),
        ("[policies]\nover_max_delay = 'drop'", "policies.over_max_delay = 'drop': allowed is one of reject, clamp"),
        ("[policies]\nname_mode = 'first'", "policies.name_mode = 'first': allowed is one of replace, keep"),
        ("[policies]\nname_mode = ''", "policies.name_mode = '': allowed is one of replace, keep"),
        ("[policies]\nname_mode = 'Keep'", "policies.name_mode = 'Keep': allowed is one of replace, keep"),
        ("[policies]\nname_mode = 1", "policies.name_mode = 1: allowed is text"),
        ("[policies.delayline-in]\nname_mode = 'first'", "[policies]: allowed is for delayline-in.name_mode one of"),
        ("[policies]\ndelay = '1s'", "[policies]: allowed is default_delay, fixed_delay, max_delay, over_max_delay"),
        ("[policies.delayline-in]\ndelay = '1s'", "or a table of these for a topic, not 'delayline-in' ['delay']"),
        ("[policies.delayline-in]\nmax_delay = '-1s'", "[policies]: allowed is for delayline-in.max_delay a duration"),
        ("[policies]\nrepeats = 2", "policies.repeats = 2: allowed is true or false"),
        ("[policies]\nrepeats = []", "policies.repeats = []: allowed is true or false"),
        ("[policies.delayline-in]\nrepeats = 2", "[policies]: allowed is for delayline-in.repeats true or false"),
        ("[policies.delayline-in]\nrepeats = 'maybe'", "[policies]: allowed is for delayline-in.repeats true or false"),
        ("[policies]\nmax_waiting = 0", "policies.max_waiting = 0: allowed is a whole number from 1 to"),
        ("[policies.delayline-in]\nmax_waiting = 'few'", "[policies]: allowed is for delayline-in.max_waiting a whole"),
        ("[policies]\nfixed_delay = '367d'", "policies: default_delay and fixed_delay must not exceed"),
        ("[policies.delayline-in]\nmax_delay='1s'\nfixed_delay = '2s'", "policies.delayline-in: default_delay"),
        (
            "[policies]\nrepeats = true\nname_mode = 'keep-time'",
            'policies: repeats and name_mode = "keep-time" must not be set together',
        ),
        (
            "[policies]\nrepeats = true\n[policies.delayline-in]\nname_mode = 'keep-time'",
            'policies.delayline-in: repeats and name_mode = "keep-time" must not be set together',
        ),
        (
            "[policies]\nexpiry_header = 'until'\nname_mode = 'keep-time'",
            'policies: expiry_header and name_mode = "keep-time" must not be set together',
        ),
        ("[policies.orders]\nmax_delay = '1s'", "policies.orders: allowed are topics in topics.input"),
        ("[bucket]\nlimit = 500", "bucket.limit: unknown setting"),
    ],
)
def test_an_unknown_name_in_the_file_gets_the_nearest_known_one(toml: Any, text: str, names: str) -> None:
    assert names in failure(file=toml(text))


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        ("DELAYLINE_BUCKET__SHARD", "did you mean DELAYLINE_BUCKET__SHARDS"),
        ("DELAYLINE_BUCKET_SHARDS", "did you mean DELAYLINE_BUCKET__SHARDS"),
        ("DELAYLINE_APPLICATIONID", "did you mean DELAYLINE_APPLICATION_ID"),
        ("DELAYLINE_QQQQ__X", "unknown setting"),
        ("DELAYLINE_", "unknown setting"),
        ("DELAYLINE_SUPPORT", "unknown setting"),
        ("DELAYLINE_PORTS", "unknown setting"),
        ("DELAYLINE_CONFIG_FILE", "unknown setting"),
        ("DELAYLINE_CONFIGURATION", "unknown setting"),
        ("DELAYLINE_FAILPOINTS", "unknown setting"),
        ("DELAYLINE_KAFKA", "a section has no value"),
        ("DELAYLINE_KAFKA__SECURITY_PROTOCL", "kafka.security.protocl: unknown setting"),
    ],
)
def test_an_unknown_variable_is_refused(variable: str, names: str) -> None:
    assert names in failure(environ={variable: SECRET})


@pytest.mark.parametrize("service", ["DELAYLINE", "DELAYLINE_RELEASE", "DELAYLINE_2"])
def test_what_kubernetes_sets_for_a_service_is_ignored(service: str) -> None:
    of_port = f"{service}_PORT_9464_TCP"
    environ = {
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "9464",
        f"{service}_SERVICE_PORT_HTTP_METRICS": "9464",
        f"{service}_PORT": "tcp://10.0.0.1:9464",
        of_port: "tcp://10.0.0.1:9464",
        f"{of_port}_PROTO": "tcp",
        f"{of_port}_PORT": "9464",
        f"{of_port}_ADDR": "10.0.0.1",
    }
    assert load_settings(None, [], environ) == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DELAYLINE_WEB_PORT", "1"),
        ("DELAYLINE_KAFKA_PORT", "1"),
        ("DELAYLINE_PORT", "tcp"),
        ("DELAYLINE_KAFKA_SERVICE_HOST", "broker:9092"),
        ("DELAYLINE_KAFKA_SERVICE_PORT", "kafka"),
        ("DELAYLINE_WEB_PORT_80_TCP", "80"),
        ("DELAYLINE_WEB_PORT_80_TCP_PROTO", "http"),
        ("DELAYLINE_WEB_PORT_80_TCP_ADDR", "host"),
    ],
)
def test_a_variable_that_kubernetes_would_set_to_something_else_is_refused(name: str, value: str) -> None:
    assert failure(environ={name: value}).startswith(f"bad-setting: {name}: unknown setting")


def test_kubernetes_may_set_addresses_of_ip_version_6() -> None:
    environ = {
        "DELAYLINE_SERVICE_HOST": "fd00::1",
        "DELAYLINE_PORT": "udp://[fd00::1]:53",
        "DELAYLINE_PORT_53_UDP_ADDR": "fd00::1",
    }
    assert load_settings(None, [], environ) == Settings()


def test_a_variable_names_a_topic_as_it_is_written() -> None:
    environ = {
        "DELAYLINE_TOPICS__INPUT": "My_in,my.in",
        "DELAYLINE_TOPICS__ALLOWED_OUTPUTS": "my_topic,my.topic,MY_TOPIC",
        "DELAYLINE_RATES__my_topic": "50",
        "DELAYLINE_RATES__my.topic": "60",
        "DELAYLINE_RATES__MY_TOPIC": "70",
        "DELAYLINE_PRESETS__My_in": "nats",
        "DELAYLINE_POLICIES__my.in.max_delay": "1s",
    }
    settings = load_settings(None, [], environ)
    assert settings.rates.by_topic == {"my_topic": 50, "my.topic": 60, "MY_TOPIC": 70}
    assert settings.presets.by_topic == {"My_in": ("nats",)}
    assert settings.policies.by_topic["my.in"].max_delay == 1_000


def test_variables_that_are_not_settings_are_ignored() -> None:
    environ = {
        "DELAYLINE_CONFIG": "x.toml",
        "DELAYLINE_FAILPOINT": "sealed=kill",
        "DELAYLINE_FAILPOINT_ROOT": "1",
        "DELAYLINER": "x",
        "PATH": "/bin",
    }
    assert load_settings(None, [], environ) == Settings()


@pytest.mark.parametrize(
    "override", ["", "=x", "bucket.shards", "bucket shards=3", "bucket", f"kafka.sasl.password {SECRET}"]
)
def test_an_override_in_another_form_is_refused(override: str) -> None:
    assert "allowed is --set section.key=value" in failure(override)


@pytest.mark.parametrize("override", ["kafka=x", "shards=3", "nowhere.x=3", "bucket.shards.x=3", ".x=1", "bucket.=1"])
def test_an_override_of_an_unknown_setting_is_refused(override: str) -> None:
    assert override.partition("=")[0] in failure(override)


# Files


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert re.search(r"nowhere\.toml' cannot be read: No such file", failure(file=tmp_path / "nowhere.toml"))


def test_a_directory_is_not_a_settings_file(tmp_path: Path) -> None:
    assert "Is a directory" in failure(file=tmp_path)


def test_an_error_for_invalid_toml_names_the_line(toml: Any) -> None:
    assert "line 2" in failure(file=toml(f'[kafka]\n"sasl.password" = {SECRET}'))


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(b"\xff\xfe")
    assert "is not valid TOML" in failure(file=file)


# Secrets


def test_no_error_shows_a_secret(toml: Any) -> None:
    file = toml(
        f'[kafka]\n"sasl.password" = ["{SECRET}"]\n"sasl.jaas.config" = {{ a = ["{SECRET}"] }}\n[kafak]\nx = "{SECRET}"'
    )
    environ = {
        "DELAYLINE_KAFKA__SASL_PASSWRD": SECRET,
        "DELAYLINE_STORAGE__PATH": f"s3a://id:{SECRET}@bucket/",
    }
    text = failure(f"kafka.bootstrap_servers=u:{SECRET}@host:1", "bucket.shards=0", file=file, environ=environ)
    assert "kafka.sasl.password = ******" in text
    assert "storage.path = ******" in text


@pytest.mark.parametrize(
    "options",
    [
        {"sasl.password": SECRET, "sasl.username": "u"},
        {"sasl.password": SECRET, "security.protocol": "SASL_SSL"},
        {"sasl.jaas.config": SECRET, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
    ],
)
def test_no_error_of_a_combination_of_client_options_shows_a_secret(options: dict[str, str]) -> None:
    assert "kafka." in failure(*(f"kafka.{key}={value}" for key, value in options.items()))


def test_not_even_the_debug_log_of_the_library_shows_a_secret(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, toml: Any
) -> None:
    monkeypatch.setenv("PYDANTIC_SETTINGS_DEBUG", "1")
    file = toml(f'[kafka]\nssl.key.password = "{SECRET}"\n')
    with caplog.at_level(logging.DEBUG):
        load_settings(file, [f"spark.spark.x.secret={SECRET}"], {"DELAYLINE_KAFKA__SSL_TRUSTSTORE_PASSWORD": SECRET})
    assert "kafka" in caplog.text
    assert SECRET not in caplog.text


def test_every_section_that_takes_further_keys_hides_its_secrets() -> None:
    tables = {
        name
        for name, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, OptionTable)
    }
    assert tables == {"kafka", "policies", "presets", "rates", "spark"}
