"""Environment variables: settings, those that Kubernetes sets for a service, and names that do not exist."""

from __future__ import annotations

import pytest

from conf.load import load_settings
from conf.settings import Settings
from tests.conf.setting_failure import SECRET, failure


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
