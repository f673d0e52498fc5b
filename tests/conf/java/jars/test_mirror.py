"""Fetching the jars from a mirror: a Maven repository on loopback, made of the jars that this environment has."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conf.errors import JarsMissing
from conf.java.jars.fetch import GROUPS, fetch_jars
from conf.java.jars.installed import is_complete, jars_folder
from conf.java.jars.jar_lock import list_of, locked
from tests.http_answers import serving

pytestmark = pytest.mark.usefixtures("java")

_POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
  <packaging>{packaging}</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
# Jars that no list names come as dependencies. Their files' names do not tell the group, and nothing needs it.
_ANY_GROUP = "org.example"


class Mirror:
    """A Maven repository, served over HTTP."""

    def __init__(self, folder: Path, login: str = "") -> None:
        self.folder = folder
        self.login = login
        self.port = 0
        # The paths of requests.
        self.served: list[str] = []

    def path_of(self, jar: str) -> Path:
        """Return the path of the file `jar` in the repository."""
        (found,) = self.folder.rglob(jar)
        return found

    @contextmanager
    def running(self) -> Iterator[str]:
        """Serve the repository, and give its URL."""
        mirror = self

        class Handler(SimpleHTTPRequestHandler):
            def send_head(self):  # type: ignore[no-untyped-def]
                basic = f"Basic {base64.b64encode(mirror.login.encode()).decode()}"
                if mirror.login and self.headers.get("Authorization") != basic:
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", 'Basic realm="Repository"')
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return None
                mirror.served.append(self.path)
                return super().send_head()

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        with serving(partial(Handler, directory=str(self.folder))) as self.port:
            yield f"http://127.0.0.1:{self.port}/"


def lay_out(repository: Path) -> None:
    """Write the Maven layout of all locked jars. The first entry of each list depends on the jars outside all lists."""
    for group in GROUPS:
        listed = [
            (each.attrib["org"], each.attrib["name"], each.attrib["rev"])
            for each in ElementTree.parse(list_of(group)).iter("dependency")  # noqa: S314
        ]
        named = [re.split(r"-(?=\d+\.)", jar.removesuffix(".jar"), maxsplit=1) for jar in locked(group)]
        others = [
            (_ANY_GROUP, artifact, version)
            for artifact, version in named
            if (artifact, version) not in [entry[1:] for entry in listed]
        ]
        for number, (org, artifact, version) in enumerate([*listed, *others]):
            folder = repository / org.replace(".", "/") / artifact / version
            folder.mkdir(parents=True, exist_ok=True)
            jar = f"{artifact}-{version}.jar"
            if not (folder / jar).exists():
                (folder / jar).symlink_to(jars_folder(group) / jar)
            pom = _POM.format(
                group=org,
                artifact=artifact,
                version=version,
                # As the real ones: Ivy leaves out a bundle unless it is told to take it.
                packaging="bundle" if artifact == "snappy-java" else "jar",
                dependencies="".join(_DEPENDENCY.format(*other) for other in others) if number == 0 else "",
            )
            (folder / f"{artifact}-{version}.pom").write_text(pom)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    """A mirror with all jars. The environment has no jars, and Ivy's cache is empty."""
    lay_out(tmp_path / "repository")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return Mirror(tmp_path / "repository")


def test_the_jars_come_from_a_mirror_and_one_with_other_bytes_is_refused_until_it_is_right(mirror: Mirror) -> None:
    jar = mirror.path_of(next(iter(locked("spark"))))
    original = jar.readlink()
    jar.unlink()
    jar.write_bytes(b"another")
    with mirror.running() as url:
        with pytest.raises(JarsMissing, match=f"{jar.name} has the SHA-256 "):
            fetch_jars(lambda line: None, url, groups=["spark"])
        assert not jars_folder("spark").exists()
        jar.unlink()
        jar.symlink_to(original)
        fetch_jars(lambda line: None, url, groups=["spark"])
    assert is_complete("spark")
    assert locked("spark").keys() <= {path.rpartition("/")[2] for path in mirror.served}


def test_a_jar_that_the_mirror_lacks_is_named(mirror: Mirror) -> None:
    jar = mirror.path_of(next(iter(locked("spark"))))
    jar.unlink()
    with mirror.running() as url, pytest.raises(JarsMissing) as failure:
        fetch_jars(lambda line: None, url, groups=["spark"])
    assert jar.name in str(failure.value)
    assert not jars_folder("spark").exists()


def test_a_mirror_with_a_login_which_no_file_has_meanwhile(mirror: Mirror, tmp_path: Path) -> None:
    mirror.login = "someone:p4ss/w@rd<&"
    lines: list[str] = []
    found: list[Path] = []

    def look(line: str) -> None:
        lines.append(line)
        files = (each for place in ("environment", "home") for each in (tmp_path / place).rglob("*") if each.is_file())
        found.extend(each for each in files if each.suffix != ".jar" and b"p4ss" in each.read_bytes())

    with mirror.running() as url:
        fetch_jars(look, url.replace("://", "://someone:p4ss%2Fw%40rd%3C%26@"), groups=["spark"])
    assert is_complete("spark")
    assert len(lines) > len(locked("spark"))
    assert found == []


@pytest.mark.parametrize("login", ["", "someone:wrong@"])
def test_a_mirror_that_refuses_the_login_is_named_without_it(mirror: Mirror, login: str) -> None:
    mirror.login = "someone:p4ssword"
    with mirror.running() as url, pytest.raises(JarsMissing) as failure:
        fetch_jars(lambda line: None, url.replace("://", f"://{login}"), groups=["spark"])
    assert f"the mirror {url} refuses " in str(failure.value)
    assert "wrong" not in str(failure.value)
