"""The types that `conf.sections` is made of: names, counts, durations, lists, sections, tables of options.

A value comes from TOML with its type, or as text from the environment or `--set`. A check that fails raises a
ValueError that names the allowed values and never repeats the value, which may be a secret.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SecretStr,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from conf.durations import FORMS, parse_duration_ms
from conf.secrets import is_secret

# pydantic's own error types, in the words of the checks below.
_ALLOWED = {
    "string_type": "text",
    "tuple_type": "a list",
    "too_short": "a list of one or more",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}
_SERVER = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[^\s,:/@\[\]]+):(\d{1,5})")

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
# Far above any use, far below where a sum of an instant and a duration leaves 64 bits.
LONGEST = 36_525 * DAY
MOST = 2_147_483_647


@dataclass(frozen=True)
class Bounded:
    """A pydantic annotation: a whole number, or a duration in ms, from `low` to `high`, both allowed."""

    low: int
    high: int
    is_duration: bool = False

    def check(self, value: Any) -> int:
        parse: Callable[[str], int] = parse_duration_ms if self.is_duration else int
        try:
            # Python counts True as an int. A float such as 2.0 is refused as well.
            if isinstance(value, int | str) and not isinstance(value, bool):
                number = parse(str(value))
                if self.low <= number <= self.high:
                    return number
        except ValueError:
            pass  # The error below names the bounds as well.
        raise ValueError(self.allowed())

    def allowed(self) -> str:
        if not self.is_duration:
            return f"a whole number from {self.low} to {self.high}"
        return f"a duration from {_exactly(self.low)} to {_exactly(self.high)}, written as {FORMS}"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)


def duration(low_ms: int, high_ms: int) -> Bounded:
    """Annotate an int of ms that is written as a duration (`90s`), with both bounds allowed."""
    return Bounded(low_ms, high_ms, is_duration=True)


def _exactly(ms: int) -> str:
    units = (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND))
    return next((f"{ms // size}{unit}" for unit, size in units if ms and ms % size == 0), f"{ms}ms")


def _matching(pattern: str, allowed: str) -> AfterValidator:
    """Check that the whole text matches `pattern`, which `allowed` describes in words."""
    compiled = re.compile(pattern, re.ASCII)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(allowed)
        return text

    return AfterValidator(check)


def one_of(*values: str) -> AfterValidator:
    """Annotate a text that is one of `values`."""
    return _matching("|".join(map(re.escape, values)), f"one of {', '.join(values)}")


def _port(server: str) -> int | None:
    """Return the port of `server`, or None if that is not host:port."""
    match = _SERVER.fullmatch(server)
    port = int(match[1]) if match else None
    return None if port is None or port > 65_535 else port


def _servers(text: str) -> str:
    servers = [server.strip() for server in text.split(",")]
    if not all(map(_port, servers)):
        raise ValueError("host:port, or several separated by commas")
    return ",".join(servers)


def _server(text: str) -> str:
    if not _port(text):
        raise ValueError("host:port with a port from 1 to 65535")
    return text


def _listening(text: str) -> str:
    if text and _port(text) is None:
        raise ValueError('host:port with a port from 0 (any free one) to 65535, or ""')
    return text


def read_list(value: Any) -> Any:
    """Parse a list written as one text, in the environment or after `--set`: `["a", "b"]` or `a,b`."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        return [item.strip() for item in value.split(",")] if value.strip() else []
    try:
        return tomllib.loads(f"list = {value.strip()}")["list"]
    except tomllib.TOMLDecodeError:
        raise ValueError('a list, written as ["a", "b"] or a,b') from None


def each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    """Check that no name comes twice."""
    if twice := next((name for at, name in enumerate(names) if name in names[:at]), None):
        raise ValueError(f"each name once, and {twice!r} is there twice")
    return names


Count = Annotated[int, Bounded(1, MOST)]
ApplicationId = Annotated[str, _matching(r"[a-zA-Z0-9._-]{1,100}", "1 to 100 of a-z, A-Z, 0-9, '.', '_', '-'")]
TopicName = Annotated[
    str,
    _matching(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}", "a topic name: 1 to 249 of a-z, A-Z, 0-9, '.', '_', '-'"),
]
TopicPattern = Annotated[
    str, _matching(r"[a-zA-Z0-9._\-*?\[\]!]{1,249}", "a topic name, or a shell pattern such as 'orders-*'")
]
HeaderName = Annotated[str, _matching(r"(?s)(?!delayline-).+", "1 character or more, not beginning with 'delayline-'")]
# Where a process listens; "" is nowhere.
ListenAddress = Annotated[str, AfterValidator(_listening)]
# Where another process listens.
ServerAddress = Annotated[str, AfterValidator(_server)]
ServerList = Annotated[str, AfterValidator(_servers)]
FilePath = Annotated[str, _matching(r"|.*\S.*", "the path of a file, or empty")]
FolderPath = Annotated[str, _matching(r"|.*\S.*", "the path of a folder, or empty")]
WebAddress = Annotated[str, _matching(r"|(https?|file)://\S+", "a URL (http, https or file), or empty")]
WebToken = Annotated[str, _matching(r"|[!-~]{16,200}", "16 to 200 visible ASCII characters, or empty")]
# Credentials in a path would be printed wherever the path is.
StoragePath = Annotated[
    str,
    _matching(
        r"(?!.*://[^/@]*:[^/@]*@).*\S.*",
        "a local path, or a Hadoop URI without credentials (set those in [spark], as spark.hadoop.…)",
    ),
]


def allowed_by(problem: ErrorDetails) -> str:
    """Return the allowed values, in words, from an error of pydantic."""
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    return _ALLOWED.get(problem["type"], problem["msg"])


class Section(BaseModel):
    """A table of the settings file: frozen, and no unknown key is allowed."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _option(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float | SecretStr):
        raise ValueError("text, a number, true or false")
    return value if isinstance(value, SecretStr) else str(value)


class OptionTable(Section):
    """A section that passes unknown keys on unchanged. Values that look like secrets are masked in print."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)
    __pydantic_extra__: dict[str, Annotated[str | SecretStr, BeforeValidator(_option)]] = Field(init=False)

    @model_validator(mode="before")
    @classmethod
    def _hide_secrets(cls, table: Any) -> Any:
        return cls.hide_secrets(table) if isinstance(table, dict) else table

    @classmethod
    def hide_secrets(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Return `table` with each passed-on value that looks like a secret as SecretStr."""
        return {
            key: SecretStr(str(value))
            if key not in cls.model_fields and isinstance(value, str | int | float) and is_secret(key, value)
            else value
            for key, value in table.items()
        }

    @property
    def options(self) -> dict[str, str]:
        """The passed-on keys with their values in clear, secrets included: never print or log this."""
        return {
            key: value.get_secret_value() if isinstance(value, SecretStr) else value
            for key, value in (self.__pydantic_extra__ or {}).items()
        }
