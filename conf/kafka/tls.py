"""The certificates and keys of the section, in either spelling, and what Java's client can read of them."""

from __future__ import annotations

import os
import re
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path

from conf.errors import SettingError
from conf.kafka.wrong_option import wrong_option

_BESIDE_CA = "a PEM file in ssl.ca.location in addition"
_BESIDE_CERTIFICATE = "PEM files in ssl.certificate.location and ssl.key.location in addition"
# DER of the object identifier 1.2.840.113549.1.5.13 (RFC 8018): the default encryption of a key by openssl.
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
_JAVAS_KEYS = (
    "a key with an encryption that Java supports: openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES, or -nocrypt. Or "
    "set ssl.keystore.location, ssl.keystore.type and ssl.keystore.password to a PKCS12 file for Java in "
    "addition"
)


def ca_file(options: Mapping[str, str]) -> str | None:
    """Return the PEM file of the authorities that sign brokers' certificates. Raises SettingError."""
    if "ssl.ca.location" in options:
        return options["ssl.ca.location"]
    store = options.get("ssl.truststore.location")
    if store is not None and options.get("ssl.truststore.type", "JKS").upper() != "PEM":
        allowed = "a PEM file with ssl.truststore.type = PEM, or " + _BESIDE_CA
        raise wrong_option("ssl.truststore.location", store, allowed)
    if store is None and "ssl.truststore.certificates" in options:
        raise SettingError(f"kafka.ssl.truststore.certificates: only Java reads this option; allowed is {_BESIDE_CA}")
    return store


def client_certificate(options: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the PEM files of the client's certificate and key, which may be one file. Raises SettingError."""
    certificate, key = options.get("ssl.certificate.location"), options.get("ssl.key.location")
    if certificate is None and key is not None:
        raise wrong_option("ssl.certificate.location", None, "the PEM file that belongs to ssl.key.location")
    if certificate is None:
        certificate = options.get("ssl.keystore.location")
        if certificate is not None and options.get("ssl.keystore.type", "JKS").upper() != "PEM":
            allowed = "a PEM file with ssl.keystore.type = PEM, or " + _BESIDE_CERTIFICATE
            raise wrong_option("ssl.keystore.location", certificate, allowed)
        if certificate is None and "ssl.keystore.certificate.chain" in options:
            raise SettingError(
                f"kafka.ssl.keystore.certificate.chain: only Java reads this option; allowed is {_BESIDE_CERTIFICATE}"
            )
    return certificate, key or certificate


def checks_host(options: Mapping[str, str]) -> bool | None:
    """Return whether the client compares a broker's certificate with its host name; None if that is not set.

    Raises SettingError.
    """
    if options.get("enable.ssl.certificate.verification", "true").lower() != "true":
        name = "enable.ssl.certificate.verification"
        raise wrong_option(name, options[name], "true, because Java always verifies. Set ssl.ca.location to the CA")
    algorithm = options.get("ssl.endpoint.identification.algorithm")
    if algorithm is None:
        return None
    if algorithm.lower() not in {"", "none", "https"}:
        allowed = "https, or none (or empty) to disable the check"
        raise wrong_option("ssl.endpoint.identification.algorithm", algorithm, allowed)
    return algorithm.lower() == "https"


def file_for_java(path: str) -> str:
    """Return `path` as Java finds it: absolute, unless `spark-submit` has started Java, in the user's folder."""
    return path if "PYSPARK_GATEWAY_PORT" in os.environ else os.path.abspath(path)


def java_keystore(certificate: str, key: str) -> dict[str, str]:
    """Return the options of Java's client for two PEM files, or one twice.

    Two files are passed as text: Java accepts only one PEM file. Raises SettingError for a file that Java cannot use.
    """
    chain, text = _pem("ssl.certificate.location", certificate), _pem("ssl.key.location", key)
    if _has_pbes2_key(text):
        raise wrong_option("ssl.key.location", key, _JAVAS_KEYS)
    if certificate == key:
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": certificate}
    if not re.search(r"BEGIN (ENCRYPTED )?PRIVATE KEY", text):
        raise wrong_option(
            "ssl.key.location", key, "a PKCS#8 key, the only format that Java reads: openssl pkcs8 -topk8"
        )
    return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": text}


def _pem(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise wrong_option(name, path, f"a readable PEM file ({error})") from None


def _has_pbes2_key(pem: str) -> bool:
    key = re.search(r"BEGIN ENCRYPTED PRIVATE KEY-+\s+([\w+/=\s]+)", pem, re.ASCII)
    return key is not None and _PBES2 in b64decode(key[1])
