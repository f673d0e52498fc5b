"""Certificates for tests, made by the JDK's keytool: PKCS12 for a Java broker, PEM for the clients."""

from __future__ import annotations

import shutil
import subprocess
from base64 import encodebytes
from pathlib import Path

from conf.java.command import java_command

STORE_PASSWORD = "of-the-store"
# DER of the object identifier 1.2.840.113549.1.12.10.1.2 (RFC 7292), which precedes an encrypted key in PKCS12.
_ENCRYPTED_KEY_OID = bytes.fromhex("060b2a864886f70d010c0a0102")
_JAVA = (
    "-J-XX:TieredStopAtLevel=1",
    "-J-XX:+UseSerialGC",
    # Kafka's Java client reads a PEM key with this encryption, but not with the default one.
    "-J-Dkeystore.pkcs12.keyProtectionAlgorithm=PBEWithSHA1AndDESede",
)


class Authority:
    """A certificate authority for one test. It creates `folder` for its files; `ca` is its PEM certificate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._store = folder / "ca.p12"
        self._generate(self._store, "ca", "-ext", "bc:c")
        self.ca = self._export(self._store, "ca")

    def issue(self, name: str) -> Path:
        """Return a PKCS12 file with a key and its certificate, which is valid for 127.0.0.1 and localhost."""
        store = self._folder / f"{name}.p12"
        shutil.copy(self._store, store)
        # keytool signs with a key from the same file.
        self._generate(store, name, "-signer", "ca", "-ext", "san=ip:127.0.0.1,dns:localhost")
        _keytool(store, "-delete", "-alias", "ca")
        return store

    def issue_pem(self, name: str) -> tuple[Path, Path]:
        """Return a certificate and its key as two PEM files; the key is encrypted with `STORE_PASSWORD`."""
        store = self.issue(name)
        key = self._folder / f"{name}-key.pem"
        body = encodebytes(_encrypted_key(store.read_bytes())).decode()
        key.write_text(f"-----BEGIN ENCRYPTED PRIVATE KEY-----\n{body}-----END ENCRYPTED PRIVATE KEY-----\n")
        return self._export(store, name), key

    def _generate(self, store: Path, name: str, *more: str) -> None:
        form = ("-keyalg", "EC", "-validity", "2", "-alias", name, "-dname", f"CN={name}")
        _keytool(store, "-genkeypair", *form, *more)

    def _export(self, store: Path, name: str) -> Path:
        file = self._folder / f"{name}.pem"
        _keytool(store, "-exportcert", "-rfc", "-alias", name, "-file", str(file))
        return file


def _keytool(store: Path, *arguments: str) -> None:
    keytool = str(Path(java_command()).with_name("keytool"))
    store_options = ("-keystore", str(store), "-storetype", "PKCS12", "-storepass", STORE_PASSWORD)
    command = [keytool, *_JAVA, *arguments, *store_options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, f"{arguments}: {result.stdout}{result.stderr}"


def _encrypted_key(store: bytes) -> bytes:
    """Return the encrypted PKCS#8 key from the PKCS12 file `store`."""
    at = store.index(_ENCRYPTED_KEY_OID) + len(_ENCRYPTED_KEY_OID)
    # The key is the content of the DER value that follows, which has tag [0].
    length, start = store[at + 1], at + 2
    if length & 0x80:
        octets = length & 0x7F
        length, start = int.from_bytes(store[start : start + octets]), start + octets
    return store[start : start + length]
