"""The configuration of the embedded broker, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def node_properties(
    data: Path, listener: str, controller: str, secured: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return Kafka's properties for one node that is both broker and controller.

    `data` is the folder of the log segments; `listener` and `controller` are addresses as `host:port`. `secured` has
    the `host:port` of an additional listener for each security protocol (SSL, SASL_PLAINTEXT, SASL_SSL). Certificates
    and logins are not part of these properties.
    """
    listeners = {"PLAINTEXT": listener, **(secured or {})}
    addresses = ",".join(f"{protocol}://{at}" for protocol, at in listeners.items())
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{addresses},CONTROLLER://{controller}",
        "advertised.listeners": addresses,
        "listener.security.protocol.map": ",".join(
            ["CONTROLLER:PLAINTEXT", *(f"{protocol}:{protocol}" for protocol in listeners)]
        ),
        "log.dirs": str(data),
        # The job reports a missing topic; automatic creation would hide a typing error in a name.
        "auto.create.topics.enable": "false",
        "delete.topic.enable": "true",
        "num.partitions": "1",
        # A single node can hold only one replica.
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # The broker creates these topics at first use; with 50 partitions each, the default, that takes seconds.
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        # The controller writes a record in each such interval. By default, every half second, that takes a third of the
        # CPU time of an idle broker.
        "metadata.max.idle.interval.ms": "5000",
    }


def properties_text(properties: Mapping[str, str]) -> str:
    """Write `properties` as a Java properties file, in Latin-1."""
    return "".join(f"{_escape(key, ' :=#!')}={_escape(value)}\n" for key, value in properties.items())


def address(host: str, port: int) -> str:
    """Write `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _escape(text: str, special: str = "") -> str:
    escaped = text.replace("\\", "\\\\")
    for character, letter in (("\n", "n"), ("\r", "r"), ("\t", "t"), ("\f", "f")):
        escaped = escaped.replace(character, "\\" + letter)
    for character in special:
        escaped = escaped.replace(character, "\\" + character)
    if escaped.startswith(" "):
        escaped = "\\" + escaped
    return "".join(c if c.isascii() else _code_units(c) for c in escaped)


def _code_units(character: str) -> str:
    # Java's characters are UTF-16 code units. A character above U+FFFF is two of them.
    return "".join(f"\\u{unit}" for unit in character.encode("utf-16-be").hex(" ", 2).split())
