"""A broker that requires mutual TLS and a login: one [kafka] section configures every client, and no secret leaks."""

from __future__ import annotations

import json
import os
import urllib.request
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from conf.errors import LoginRefused
from conf.kafka.contact import check_contact
from conf.sections import KafkaSettings
from streaming.local.free_port import free_port
from tests.certificates import STORE_PASSWORD
from tests.system.conftest import Application
from tests.system.secured import PASSWORD, Secured
from tests.system.service import Service
from tests.token_server import CLIENT_SECRET

_STORAGE_KEY = "unique-key-91c2"
_SECRETS = [secret.encode() for secret in (PASSWORD[:16], CLIENT_SECRET, STORE_PASSWORD, _STORAGE_KEY)]


@pytest.fixture
def application(secured: Secured, tmp_path: Path) -> Application:
    """An application with settings that name only the secured listener."""
    application = Application(secured.broker, tmp_path)
    application.bootstrap = secured.section["bootstrap_servers"]
    return application


def _service(folder: Path, section: dict[str, str], overrides: list[str]) -> Service:
    """Return a service with its [kafka] section in a file outside of `folder`."""
    folder.mkdir(exist_ok=True)
    file = folder.with_name(f"{folder.name}.toml")
    # A JSON string is a TOML string too.
    file.write_text("[kafka]\n" + "".join(f'"{name}" = {json.dumps(value)}\n' for name, value in section.items()))
    service = Service(folder, overrides)
    service.environment = {
        "DELAYLINE_CONFIG": str(file),
        "DELAYLINE_SPARK__spark.hadoop.fs.azure.account.key.x": _STORAGE_KEY,
    }
    return service


def _leaks(*folders: Path) -> list[str]:
    leaks = []
    # The job deletes folders meanwhile: `os.walk` skips a folder that is gone, where `rglob` fails.
    walks = (walk for folder in folders for walk in os.walk(folder))
    for file in (Path(path, name) for path, _, names in walks for name in names):
        with suppress(FileNotFoundError):
            content = file.read_bytes()
            leaks += [f"{secret!r} in {file}" for secret in _SECRETS if secret in content]
    return leaks


def _pages(port: int) -> dict[str, bytes]:
    """Return the pages of Spark's web UI about the job."""
    # Without a proxy that the environment may name.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(path: str) -> bytes:
        with opener.open(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
            content: bytes = response.read()
        return content

    (application,) = json.loads(get("/api/v1/applications"))
    api = f"/api/v1/applications/{application['id']}"
    paths = [f"{api}/environment", f"{api}/sql?details=true&planDescription=true", "/environment/", "/StreamingQuery/"]
    return {path: get(path) for path in paths}


def _command_lines() -> list[str]:
    """Return the command lines of all descendants of the test's process."""
    lines = []
    for child in psutil.Process().children(recursive=True):
        # Workers may end meanwhile.
        with suppress(psutil.NoSuchProcess):
            lines.append(" ".join(child.cmdline()))
    return lines


@pytest.mark.thorough
@pytest.mark.takes(50)
def test_one_kafka_section_configures_every_client_and_no_secret_leaks(
    application: Application, secured: Secured
) -> None:
    port, inside, outside = free_port(), application.folder / "inside", application.folder / "outside"
    overrides = application.overrides(
        f"storage.path={inside / 'storage'}",
        f"spark.spark.local.dir={inside / 'local'}",
        "spark.spark.ui.enabled=true",
        f"spark.spark.ui.port={port}",
    )
    job = _service(inside, secured.section, overrides)
    shell = _service(outside, secured.section, overrides)
    assert shell.command("topics", "create") == 0, shell.log
    assert shell.command("publish", "good", "--after", "1s") == 0, shell.log
    assert shell.command("publish", "bad", "--after", "soon", "--unchecked") == 0, shell.log
    try:
        job.start()
        for topic, value in ((application.output, "good"), (application.dead, "bad")):
            read = ("subscribe", "--topic", topic, "--from", "beginning", "--count", "1", "--timeout", "60s")
            assert shell.command(*read, "--format", "json") == 0, shell.log
            assert json.loads(shell.log.splitlines()[-1])["value"] == value
        assert shell.command("status", "--format", "json") == 0, shell.log
        assert json.loads(shell.log.splitlines()[-1])["input_lag"]["total"] == 0
        pages = _pages(port)
        assert all(application.id.encode() in pages[path] for path in pages if path.endswith("environment"))
        assert [(path, secret) for path in pages for secret in _SECRETS if secret in pages[path]] == []
        # Every user of the host can read the command lines of the job, its Java and its workers.
        lines = _command_lines()
        assert any("SparkSubmit" in line for line in lines)
        assert [line for line in lines if any(secret.decode() in line for secret in _SECRETS)] == []
        assert _leaks(inside, outside) == []
        assert job.stop() == 0, job.log[-3000:]
        assert _leaks(inside, outside) == []
    finally:
        job.kill()
    assert job.log.count("\n") > 2
    # The search does find secrets: in the files with the settings.
    assert len(_leaks(application.folder)) >= 2


@pytest.mark.takes(3)
@pytest.mark.parametrize(
    ("wrong", "code", "names"),
    [
        ({"sasl.password": "wrong"}, "login-refused", "kafka.sasl.password"),
        pytest.param({"sasl.username": "nobody"}, "login-refused", "kafka.sasl.username", marks=pytest.mark.thorough),
        pytest.param({"sasl.mechanism": "SCRAM-SHA-256"}, "login-refused", "SCRAM-SHA-512", marks=pytest.mark.thorough),
        ({"ssl.ca.location": "stranger"}, "certificate-refused", "kafka.ssl.ca.location"),
        ({"ssl.ca.location": "/nowhere/ca.pem"}, "bad-setting", "kafka.ssl.ca.location = '/nowhere/ca.pem'"),
        ({"ssl.key.password": "wrong"}, "bad-setting", "ssl.key.location"),
        pytest.param(
            dict.fromkeys(("ssl.certificate.location", "ssl.key.location", "ssl.key.password")),
            "certificate-refused",
            "",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_every_client_reports_a_wrong_section(
    application: Application, secured: Secured, wrong: dict[str, str | None], code: str, names: str
) -> None:
    wrong = {key: str(secured.stranger) if value == "stranger" else value for key, value in wrong.items()}
    section = {key: value for key, value in {**secured.section, **wrong}.items() if value is not None}
    refused = _service(application.folder / "refused", section, application.overrides())
    # All clients are configured in the same way: one wrong value is tried with each client.
    for command in [["run"], ["publish", "x"], ["subscribe"]] if "sasl.password" in wrong else [["topics", "show"]]:
        assert refused.command(*command) == (2 if code == "bad-setting" else 1)
        (line,) = refused.log.splitlines()
        assert line.startswith(f"error: {code}: ")
        assert names in line
        assert not any(secret.decode() in line for secret in _SECRETS)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"sasl.oauthbearer.client.secret": "wrong"}, "invalid_client"),
        ({"https.ca.location": "stranger"}, "certificate"),
        ({"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/"}, "connect"),
    ],
)
def test_a_token_that_cannot_be_fetched_is_a_refused_login(
    secured: Secured, wrong: dict[str, str], reason: str
) -> None:
    wrong = {key: str(secured.stranger) if value == "stranger" else value for key, value in wrong.items()}
    section = KafkaSettings.model_validate({**secured.sections["OAUTHBEARER"], **wrong, "log_level": "0"})
    with pytest.raises(LoginRefused) as raised:
        check_contact(section)
    assert reason in str(raised.value)
    assert "kafka.sasl.oauthbearer.client.secret" in str(raised.value)
    assert CLIENT_SECRET not in str(raised.value)
