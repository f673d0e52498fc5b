"""The file of properties that Kafka's own tools use (`client.properties`), below the other keys of the section.

The syntax is the syntax of `java.util.Properties`. Two things are stricter: each key may occur once, and the size is
bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from conf.errors import SettingError
from conf.sections import KafkaSettings

MAX_BYTES = 1024 * 1024
_WHITE = " \t\f"
_LINE_END = re.compile(r"\r\n|\r|\n")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# A byte order mark as Latin-1 shows it: of UTF-8, and of UTF-16 in either order.
_MARKS = ("\xef\xbb\xbf", "\xff\xfe", "\xfe\xff")
# Values that Delayline sets itself. Such files often contain them too.
_AGREED = {
    "acks": ("all", "-1"),
    "enable.auto.commit": ("false",),
    "enable.idempotence": ("true",),
    "isolation.level": ("read_committed",),
}
_SERVERS = "bootstrap.servers"


@dataclass(frozen=True)
class Property:
    """A value, and the number of the line that it begins in, from 1. It may be a secret."""

    value: str
    line: int


def with_client_properties(kafka: KafkaSettings) -> tuple[KafkaSettings, dict[str, str]]:
    """Return `kafka` with the properties of its file, and for each of these, by dotted key, the file and the line.

    Raises SettingError for a file that cannot be used, and for properties that differ from a key of `kafka`.
    """
    file = kafka.client_properties
    if not file:
        return kafka, {}
    given = dict(kafka.model_extra or {}) | {name: getattr(kafka, name) for name in kafka.model_fields_set}
    clear = kafka.options | ({_SERVERS: kafka.bootstrap_servers} if "bootstrap_servers" in given else {})
    table, origins, problems = dict(given), {}, []
    for key, found in read_client_properties(Path(file)).items():
        value = re.sub(r"\s*,\s*", ",", found.value.strip()) if key == _SERVERS else found.value
        field = "bootstrap_servers" if key == _SERVERS else key
        origin = f"{file}, line {found.line}"
        if clear.get(key, value) != value:
            problems.append(f"kafka.{field} differs from the {key} of {origin}. Keep one of them")
        elif key not in clear and value not in _AGREED.get(key, ()):
            table[field] = value
            origins[f"kafka.{field}"] = origin
    if problems:
        raise SettingError("\n".join(problems))
    try:
        return KafkaSettings.model_validate(table), origins
    except ValidationError as error:
        # Only pydantic's check of the servers can fail. All other properties are text.
        allowed = error.errors()[0]["ctx"]["error"]
    origin = origins["kafka.bootstrap_servers"]
    raise SettingError(
        f"kafka.bootstrap_servers = {table['bootstrap_servers']!r}: allowed is {allowed} (from {origin})"
    )


def read_client_properties(file: Path) -> dict[str, Property]:
    """Return the properties of `file` by key. Raises SettingError, which names file and line and repeats no value."""
    return parse_properties(_text(file), str(file))


def parse_properties(text: str, name: str) -> dict[str, Property]:
    """Return the properties in `text`. Raises SettingError, with the file's `name`."""
    found: dict[str, Property] = {}
    for number, line in _logical_lines(text):
        key, value = (_unescaped(part, name, number) for part in _split(line))
        if key in found:
            raise SettingError(
                f"{name}, line {number}: {key} is already set in line {found[key].line}. Keep one of them"
            )
        found[key] = Property(value, number)
    return found


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise _unusable(file, f"a readable file ({why})") from None
    if len(content) > MAX_BYTES:
        raise _unusable(file, f"a file of up to {MAX_BYTES} bytes")
    text = content.decode("latin-1")
    if "\0" in text or text.startswith(_MARKS):
        allowed = "Latin-1 text without a byte order mark, as Kafka reads it. Write other characters as \\u20ac"
        raise _unusable(file, allowed)
    return text


def _unusable(file: Path, allowed: str) -> SettingError:
    return SettingError(f"kafka.client_properties = {str(file)!r}: allowed is {allowed}")


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Return each line with its number: joined if the one before ends in a backslash, without comments and blanks."""
    lines: list[tuple[int, str]] = []
    goes_on = False
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_WHITE)
        if goes_on and not lines[-1][1]:
            # For Java, a line with only a backslash does not begin a value. The next line may be a comment.
            lines.pop()
            goes_on = False
        if not goes_on and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if goes_on:
            lines[-1] = (lines[-1][0], lines[-1][1] + line)
        else:
            lines.append((number, line))
        goes_on = backslashes % 2 == 1
        if goes_on:
            lines[-1] = (lines[-1][0], lines[-1][1][:-1])
    return lines


def _split(line: str) -> tuple[str, str]:
    """Divide a line at the first `=`, `:` or white space that is not escaped."""
    at = 0
    while at < len(line) and line[at] not in "=:" + _WHITE:
        at += 2 if line[at] == "\\" else 1
    key, rest = line[:at], line[at:].lstrip(_WHITE)
    return key, rest[1:].lstrip(_WHITE) if rest[:1] in ("=", ":") else rest


def _unescaped(text: str, name: str, number: int) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] == "u":
            if len(code) == 1:
                raise SettingError(f"{name}, line {number}: \\u must be followed by four hexadecimal digits")
            return chr(int(code[1:], 16))
        return _LETTERS.get(code, code)

    # Java writes a character above U+FFFF as two.
    return _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
