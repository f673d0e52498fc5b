"""The [kafka] section in the words of each of the three Kafka clients.

Spark's source is Java's client, deliveries go through librdkafka (confluent-kafka), administration and the
command line through kafka-python. They agree on most names, but each spells security its own way: whichever
spelling the section uses, each client gets its own. An option that only some clients know goes to those.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from conf.errors import SettingError
from conf.settings import KafkaSettings, is_secret


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Names as of kafka-clients 3.9 (consumer and admin) and librdkafka 2.16, without those in the tables below.
_SHARED = _names(
    """
    allow.auto.create.topics check.crcs client.dns.lookup client.id client.rack connections.max.idle.ms
    enable.metrics.push fetch.max.bytes fetch.min.bytes heartbeat.interval.ms isolation.level
    max.partition.fetch.bytes max.poll.interval.ms metadata.max.age.ms metadata.recovery.strategy
    reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms
    retry.backoff.ms sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
    sasl.kerberos.service.name session.timeout.ms socket.connection.setup.timeout.ms
    """
)
_LIBRDKAFKA_ONLY = _names(
    """
    api.version.fallback.ms api.version.request api.version.request.timeout.ms batch.num.messages
    batch.size broker.address.family broker.address.ttl broker.version.fallback compression.codec
    compression.level compression.type coordinator.query.interval.ms debug delivery.timeout.ms
    enable.random.seed fetch.error.backoff.ms fetch.message.max.bytes fetch.queue.backoff.ms
    fetch.wait.max.ms https.ca.location linger.ms log.connection.close log.thread.name log_level
    max.in.flight max.in.flight.requests.per.connection message.copy.max.bytes message.max.bytes
    message.send.max.retries message.timeout.ms metadata.recovery.rebootstrap.trigger.ms
    plugin.library.paths queue.buffering.backpressure.threshold queue.buffering.max.kbytes
    queue.buffering.max.messages queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages
    receive.message.max.bytes reconnect.backoff.jitter.ms sasl.kerberos.keytab sasl.kerberos.principal
    socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes
    socket.send.buffer.bytes socket.timeout.ms ssl.ca.certificate.stores ssl.crl.location ssl.curves.list
    ssl.engine.id ssl.engine.location ssl.providers ssl.sigalgs.list statistics.interval.ms
    sticky.partitioning.linger.ms topic.blacklist topic.metadata.propagation.max.ms
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
    topic.metadata.refresh.sparse
    """
)
_JAVA_ONLY = _names(
    """
    auto.include.jmx.reporter default.api.timeout.ms exclude.internal.topics fetch.max.wait.ms
    max.poll.records metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
    receive.buffer.bytes sasl.client.callback.handler.class sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
    sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
    security.providers send.buffer.bytes socket.connection.setup.timeout.max.ms ssl.enabled.protocols
    ssl.engine.factory.class ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key
    ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
    ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
    ssl.truststore.location ssl.truststore.password ssl.truststore.type
    """
)
# What producer, consumer and admin client of kafka-python all take.
_KAFKA_PYTHON_TEXT = _names("client.dns.lookup client.id sasl.kerberos.service.name")
_KAFKA_PYTHON_NUMBERS = _names(
    """
    connections.max.idle.ms max.in.flight.requests.per.connection metadata.max.age.ms metrics.num.samples
    metrics.sample.window.ms receive.buffer.bytes receive.message.max.bytes reconnect.backoff.max.ms
    reconnect.backoff.ms request.timeout.ms retry.backoff.ms send.buffer.bytes
    """
)
_TRANSLATED = _names(
    """
    enable.ssl.certificate.verification sasl.jaas.config sasl.mechanism sasl.mechanisms sasl.password
    sasl.username security.protocol ssl.ca.location ssl.certificate.location
    ssl.endpoint.identification.algorithm ssl.key.location ssl.key.password
    """
)
_FILES = _names(
    """
    ssl.ca.location ssl.certificate.location ssl.crl.location ssl.key.location ssl.keystore.location
    ssl.truststore.location
    """
)
# Set by Delayline itself, since its guarantees rest on them, or not to be had from all three clients.
_REFUSED = {
    "bootstrap.servers": "write kafka.bootstrap_servers",
    "metadata.broker.list": "write kafka.bootstrap_servers",
    "transaction.timeout.ms": "write delivery.transaction_timeout",
    "ssl.ca.pem": "give a file, as ssl.ca.location",
    "ssl.certificate.pem": "give a file, as ssl.certificate.location",
    "ssl.key.pem": "give a file, as ssl.key.location",
    "ssl.cipher.suites": "the clients have different names for ciphers; limit them at the broker",
} | dict.fromkeys(
    _names(
        """
        acks auto.commit.enable auto.commit.interval.ms auto.offset.reset enable.auto.commit
        enable.auto.offset.store enable.gapless.guarantee enable.idempotence enable.partition.eof
        group.id group.instance.id group.protocol interceptor.classes key.deserializer key.serializer
        partition.assignment.strategy partitioner partitioner.class request.required.acks
        transactional.id value.deserializer value.serializer
        """
    ),
    "Delayline sets it itself; leave it out",
)
_KNOWN = _SHARED | _LIBRDKAFKA_ONLY | _JAVA_ONLY | _TRANSLATED | _KAFKA_PYTHON_NUMBERS

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = (*_LOGIN_MODULES, "GSSAPI")
_BESIDE_CA = "a PEM file as ssl.ca.location beside it"
_BESIDE_CERTIFICATE = "PEM files as ssl.certificate.location and ssl.key.location beside it"
# DER of the object identifier 1.2.840.113549.1.5.13 (RFC 8018): how openssl encrypts a key unless told otherwise.
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
_JAVAS_KEYS = (
    "a key whose encryption Java's client knows: openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES, or -nocrypt; or a PKCS12 file "
    "for Java as ssl.keystore.location beside it, with ssl.keystore.type and ssl.keystore.password"
)
_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s;"']+))""", re.DOTALL)
_JAAS_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


@dataclass(frozen=True)
class _Security:
    """What the section says of security, in nobody's spelling. None: not said."""

    protocol: str | None
    mechanism: str | None
    username: str | None
    password: str | None
    ca: str | None
    certificate: str | None
    key: str | None
    key_password: str | None
    checks_host: bool | None


def check_options(kafka: KafkaSettings) -> None:
    """Raise SettingError unless each further key of `kafka` is known and the three clients can act on them.

    Reads no file.
    """
    options, _ = _read(kafka)
    _numbers(options)


def java_options(kafka: KafkaSettings) -> dict[str, str]:
    """Return the options of Java's client, for Spark's source, without the `kafka.` in front.

    A client key in a file of its own is read and given as text, since Java takes no two PEM files. Holds
    secrets. Raises SettingError for what `check_options` finds, for a file that cannot be read, and for a PEM file that
    Java could not use.
    """
    options, security = _read(kafka)
    _check_files(options)
    java = {name: value for name, value in options.items() if name in _SHARED | _JAVA_ONLY}
    java |= {"bootstrap.servers": kafka.bootstrap_servers} | _said(
        {
            "security.protocol": security.protocol,
            "sasl.mechanism": security.mechanism,
            "sasl.jaas.config": options.get("sasl.jaas.config") or _write_jaas(security),
            "ssl.key.password": security.key_password,
        }
    )
    if security.checks_host is not None:
        java["ssl.endpoint.identification.algorithm"] = "https" if security.checks_host else ""
    if security.ca and not {"ssl.truststore.location", "ssl.truststore.certificates"} & java.keys():
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": security.ca}
    if security.certificate and not {"ssl.keystore.location", "ssl.keystore.certificate.chain"} & java.keys():
        java |= _java_keystore(security.certificate, security.key or security.certificate)
    return java


def librdkafka_options(kafka: KafkaSettings) -> dict[str, str]:
    """Return the options of confluent-kafka. Holds secrets.

    Raises SettingError as `check_options` does, and for a file that cannot be read.
    """
    options, security = _read(kafka)
    _check_files(options)
    known = {name: value for name, value in options.items() if name in _SHARED | _LIBRDKAFKA_ONLY}
    checks_host = {None: None, True: "https", False: "none"}[security.checks_host]
    return known | _said(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "security.protocol": security.protocol,
            "sasl.mechanism": security.mechanism,
            "sasl.username": security.username,
            "sasl.password": security.password,
            "ssl.ca.location": security.ca,
            "ssl.certificate.location": security.certificate,
            "ssl.key.location": security.key,
            "ssl.key.password": security.key_password,
            "ssl.endpoint.identification.algorithm": checks_host,
        }
    )


def kafka_python_options(kafka: KafkaSettings) -> dict[str, Any]:
    """Return keyword arguments that kafka-python's producer, consumer and admin client all take.

    Holds secrets. Raises SettingError as `check_options` does, and for a file that cannot be read.
    """
    options, security = _read(kafka)
    _check_files(options)
    typed: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers.split(",")}
    for name in _KAFKA_PYTHON_TEXT & options.keys():
        typed[name.replace(".", "_")] = options[name]
    typed |= _numbers(options)
    return typed | _said(
        {
            "security_protocol": security.protocol,
            "sasl_mechanism": security.mechanism,
            "sasl_plain_username": security.username,
            "sasl_plain_password": security.password,
            "ssl_cafile": security.ca,
            "ssl_certfile": security.certificate,
            "ssl_keyfile": security.key,
            "ssl_password": security.key_password,
            "ssl_crlfile": options.get("ssl.crl.location"),
            "ssl_check_hostname": security.checks_host,
        }
    )


def _numbers(options: dict[str, str]) -> dict[str, int]:
    typed = {}
    for name in _KAFKA_PYTHON_NUMBERS & options.keys():
        try:
            typed[name.replace(".", "_")] = int(options[name])
        except ValueError:
            raise _wrong(name, options[name], "a whole number") from None
    return typed


def _check_files(options: dict[str, str]) -> None:
    """Say of a missing file which it is: the clients name it in riddles, or wait for a broker that never answers."""
    for name in _FILES & options.keys():
        try:
            with open(options[name], "rb"):
                pass
        except OSError as error:
            raise _wrong(name, options[name], f"a file that can be read ({error.strerror})") from None


def _said(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _wrong(name: str, value: str | None, allowed: str) -> SettingError:
    shown = "not set" if value is None else "******" if is_secret(name, value) else repr(value)
    return SettingError(f"kafka.{name} = {shown}: allowed is {allowed}")


def _check_names(options: dict[str, str]) -> None:
    wrong = []
    for name in options:
        if name in _REFUSED:
            wrong.append(f"kafka.{name}: not allowed here: {_REFUSED[name]}")
        elif name not in _KNOWN:
            near = get_close_matches(name, [*sorted(_KNOWN), "bootstrap_servers"], n=1)
            hint = f"the nearest is kafka.{near[0]}" if near else "no Kafka client knows it"
            wrong.append(f"kafka.{name}: no such setting; {hint}")
    if wrong:
        raise SettingError("\n".join(wrong))


def _read(kafka: KafkaSettings) -> tuple[dict[str, str], _Security]:
    options = kafka.options
    _check_names(options)
    protocol = _one_of(options, "security.protocol", _PROTOCOLS)
    mechanism = _mechanism(options)
    username, password = _login(options)
    if (protocol or "PLAINTEXT").startswith("SASL_"):
        if mechanism is None:
            raise _wrong("sasl.mechanism", None, f"with {protocol}: {', '.join(_MECHANISMS)}")
        if mechanism in _LOGIN_MODULES and (username is None or password is None):
            missing = "sasl.username" if username is None else "sasl.password"
            raise _wrong(missing, None, f"a text with {mechanism}, unless sasl.jaas.config has it")
    elif mechanism or username or password:
        # A client would log in to nothing, and say nothing of it.
        raise _wrong("security.protocol", protocol, "SASL_SSL or SASL_PLAINTEXT, with sasl options")
    certificate, key = _certificate(options)
    security = _Security(
        protocol, mechanism, username, password, _ca(options), certificate, key,
        options.get("ssl.key.password"), _checks_host(options),
    )  # fmt: skip
    return options, security


def _one_of(options: dict[str, str], name: str, allowed: Sequence[str]) -> str | None:
    value = options.get(name)
    if value is not None and value.upper() not in allowed:
        raise _wrong(name, value, ", ".join(allowed))
    return value and value.upper()


def _mechanism(options: dict[str, str]) -> str | None:
    java, librdkafka = (_one_of(options, name, _MECHANISMS) for name in ("sasl.mechanism", "sasl.mechanisms"))
    if java and librdkafka and java != librdkafka:
        raise _wrong("sasl.mechanisms", librdkafka, f"what sasl.mechanism says: {java}")
    return java or librdkafka


def _login(options: dict[str, str]) -> tuple[str | None, str | None]:
    jaas = options.get("sasl.jaas.config")
    parsed = _parse_jaas(jaas) if jaas else {}
    username = options.get("sasl.username", parsed.get("username"))
    return username, options.get("sasl.password", parsed.get("password"))


def _parse_jaas(jaas: str) -> dict[str, str]:
    """Return the options of a JAAS entry, read with the escapes of Java's StreamTokenizer."""
    found = {}
    for name, double, single, bare in _JAAS_OPTION.findall(jaas):
        found[name] = bare or re.sub(
            r"\\([0-3]?[0-7]{1,2}|.)",
            lambda m: chr(int(m[1], 8)) if m[1][0] in "01234567" else _JAAS_ESCAPES.get(m[1], m[1]),
            double or single,
            flags=re.DOTALL,
        )
    return found


def _write_jaas(security: _Security) -> str | None:
    module = _LOGIN_MODULES.get(security.mechanism or "")
    if module is None or security.username is None or security.password is None:
        return None
    # A bare line end would end the quoted text for Java's tokenizer.
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})
    username, password = security.username.translate(escapes), security.password.translate(escapes)
    return f'{module} required username="{username}" password="{password}";'


def _ca(options: dict[str, str]) -> str | None:
    if "ssl.ca.location" in options:
        return options["ssl.ca.location"]
    store = options.get("ssl.truststore.location")
    if store is not None and options.get("ssl.truststore.type", "JKS").upper() != "PEM":
        raise _wrong("ssl.truststore.location", store, "a PEM file with ssl.truststore.type = PEM, or " + _BESIDE_CA)
    if store is None and "ssl.truststore.certificates" in options:
        raise SettingError(f"kafka.ssl.truststore.certificates: only Java takes it; allowed is {_BESIDE_CA}")
    return store


def _certificate(options: dict[str, str]) -> tuple[str | None, str | None]:
    """Return the PEM files of the client's certificate and key, which may be one file."""
    certificate, key = options.get("ssl.certificate.location"), options.get("ssl.key.location")
    if certificate is None and key is not None:
        raise _wrong("ssl.certificate.location", None, "the PEM file that belongs to ssl.key.location")
    if certificate is None:
        certificate = options.get("ssl.keystore.location")
        if certificate is not None and options.get("ssl.keystore.type", "JKS").upper() != "PEM":
            allowed = "a PEM file with ssl.keystore.type = PEM, or " + _BESIDE_CERTIFICATE
            raise _wrong("ssl.keystore.location", certificate, allowed)
        if certificate is None and "ssl.keystore.certificate.chain" in options:
            raise SettingError(
                f"kafka.ssl.keystore.certificate.chain: only Java takes it; allowed is {_BESIDE_CERTIFICATE}"
            )
    return certificate, key or certificate


def _java_keystore(certificate: str, key: str) -> dict[str, str]:
    chain, text = (
        _pem(name, path) for name, path in (("ssl.certificate.location", certificate), ("ssl.key.location", key))
    )
    if _has_pbes2_key(text):
        raise _wrong("ssl.key.location", key, _JAVAS_KEYS)
    if certificate == key:
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": certificate}
    if not re.search(r"BEGIN (ENCRYPTED )?PRIVATE KEY", text):
        raise _wrong("ssl.key.location", key, "a PKCS#8 key, as Java reads no other: openssl pkcs8 -topk8")
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": chain,
        "ssl.keystore.key": text,
    }


def _pem(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(name, path, f"a readable PEM file ({error})") from None


def _has_pbes2_key(pem: str) -> bool:
    key = re.search(r"BEGIN ENCRYPTED PRIVATE KEY-+\s+([\w+/=\s]+)", pem, re.ASCII)
    return key is not None and _PBES2 in b64decode(key[1])


def _checks_host(options: dict[str, str]) -> bool | None:
    if options.get("enable.ssl.certificate.verification", "true").lower() != "true":
        name = "enable.ssl.certificate.verification"
        raise _wrong(name, options[name], "true, since Java always verifies; give the CA as ssl.ca.location")
    algorithm = options.get("ssl.endpoint.identification.algorithm")
    if algorithm is None:
        return None
    if algorithm.lower() not in {"", "none", "https"}:
        raise _wrong("ssl.endpoint.identification.algorithm", algorithm, "https, or none (or empty) for no check")
    return algorithm.lower() == "https"
