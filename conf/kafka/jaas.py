"""Reading and writing JAAS entries, which hold the login of Kafka's Java client."""

from __future__ import annotations

import re
from collections.abc import Mapping

LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_JAAS_OPTION = re.compile(r"""([\w.]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s;"']+))""", re.DOTALL)
_JAAS_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


def read_jaas(jaas: str) -> dict[str, str]:
    """Parse a JAAS entry and return its options. Escapes follow Java's StreamTokenizer."""
    found = {}
    for name, double, single, bare in _JAAS_OPTION.findall(jaas):
        found[name] = bare or re.sub(
            r"\\([0-3]?[0-7]{1,2}|.)",
            lambda m: chr(int(m[1], 8)) if m[1][0] in "01234567" else _JAAS_ESCAPES.get(m[1], m[1]),
            double or single,
            flags=re.DOTALL,
        )
    return found


def write_jaas(module: str, options: Mapping[str, str]) -> str:
    """Return the entry for the login module of class `module`. Contains the options' secrets."""
    # Java's tokenizer ends a quoted text at a bare line end.
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})
    written = "".join(f' {name}="{value.translate(escapes)}"' for name, value in options.items())
    return f"{module} required{written};"
