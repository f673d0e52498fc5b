"""Load `Settings` from a TOML file, the environment and `--set`; a later source overrides an earlier one.

pydantic-settings reads, merges and checks. This file maps names to settings and turns each problem into a sentence.
No secret leaves it in clear, not even in the cause of an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    TomlConfigSettingsSource,
)

from conf import failpoints
from conf.errors import SettingError
from conf.kafka.client_properties import with_client_properties
from conf.kafka.options import check_options
from conf.secrets import is_secret
from conf.setting_types import OptionTable, allowed_by
from conf.settings import Settings

CONFIG_VARIABLE = "DELAYLINE_CONFIG"
"""The variable that names the settings file. The command line reads it."""

_PREFIX = "DELAYLINE_"
_NOT_SETTINGS = frozenset({CONFIG_VARIABLE, failpoints.VARIABLE, failpoints.ROOT_VARIABLE})
# Kubernetes sets such variables in each pod if the name of a Service begins with `delayline`:
# DELAYLINE_SERVICE_HOST=10.0.0.1, DELAYLINE_RELEASE_SERVICE_PORT_HTTP=9464, DELAYLINE_PORT=tcp://…,
# DELAYLINE_PORT_9464_TCP_ADDR. No setting has such a name, but a misspelt one may, such as DELAYLINE_WEB_PORT=80. The
# value tells them apart.
_IP, _PROTOCOL = r"[0-9a-fA-F.:]+", r"_[0-9]+_(TCP|UDP|SCTP)"
_SERVICE_LINK = re.compile(
    r"DELAYLINE(_[A-Z0-9]+)*?_("
    rf"SERVICE_HOST={_IP}|SERVICE_PORT(_[A-Z0-9_]+)?=[0-9]+|PORT({_PROTOCOL})?=(tcp|udp|sctp)://\[?{_IP}\]?:[0-9]+"
    rf"|PORT{_PROTOCOL}_(PROTO=(tcp|udp|sctp)|PORT=[0-9]+|ADDR={_IP}))"
)

_KEY = re.compile(r"[\w.-]+", re.ASCII)
# Python decodes bytes that are not UTF-8, in arguments and variables, to these. No client accepts them.
_NO_TEXT = re.compile(r"[\udc80-\udcff]")

_SECTIONS: dict[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
_KEYS = [name for name in Settings.model_fields if name not in _SECTIONS] + [
    f"{section}.{key}" for section, model in _SECTIONS.items() for key in model.model_fields
]
# Further keys of these sections are names with dots.
_OPTIONS_OF_CLIENTS = ("kafka", "spark")


class _Source(NamedTuple):
    """A source of settings, and for each dotted key the words that name its origin in an error."""

    source: PydanticBaseSettingsSource
    origins: dict[str, str]


def load_settings(
    file: Path | None = None, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Settings:
    """Return the settings of `file`, `environ` and `overrides` together; the last of these wins.

    Args:
        file: a TOML file; None for the defaults.
        overrides: each `section.key=value`, split at the first dot and the first `=`.
        environ: variables `DELAYLINE_SECTION__KEY`; None for the process's. In [kafka] and [spark] each `_` of a key
            without a dot is read as a dot, and a key in capitals in lower case:
            `DELAYLINE_KAFKA__SECURITY_PROTOCOL`, `DELAYLINE_SPARK__spark_executor_memoryOverhead`. The topics in
            keys of other sections are read as they are written.

    Raises:
        SettingError: lists every problem with key, value (`******` for a secret), allowed values and origin.
    """
    problems: list[str] = []
    from_file = _read_file(file)
    from_environ = _read_environ(os.environ if environ is None else environ, problems)
    from_overrides = _read_overrides(overrides, problems)
    origins = from_file.origins | from_environ.origins | from_overrides.origins
    sources = (from_overrides.source, from_environ.source, from_file.source)
    settings = None
    try:
        # The parameter by which pydantic-settings accepts ready sources; its dataclass transform hides it from mypy.
        settings = Settings(_build_sources=(sources, {}))  # type: ignore[call-arg]
        kafka, from_properties = with_client_properties(settings.kafka)
        settings = settings.model_copy(update={"kafka": kafka})
        origins |= from_properties
        check_options(settings.kafka)
    except ValidationError as error:
        problems += [_sentence(detail, origins) for detail in error.errors()]
    except SettingError as error:
        problems += [_with_origin(line, origins) for line in error.args[0].splitlines()]
    if settings is None or problems:
        # Raised outside the except clause: an error of pydantic holds values in clear, and would be shown as the cause.
        raise SettingError("\n".join(problems))
    return settings


class _Table(InitSettingsSource):
    def __init__(self, table: dict[str, Any]) -> None:
        super().__init__(Settings, _hide_secrets(table))


class _Environment(EnvSettingsSource):
    """Variables under their normalised names, from any mapping instead of `os.environ`."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__(Settings, case_sensitive=False)
        self.env_vars = variables

    def __call__(self) -> dict[str, Any]:
        return _hide_secrets(super().__call__())


def _hide_secrets(table: dict[str, Any]) -> dict[str, Any]:
    """Wrap secrets before pydantic-settings can report or log them (PYDANTIC_SETTINGS_DEBUG)."""
    hidden = dict(table)
    for section, model in _SECTIONS.items():
        if issubclass(model, OptionTable) and isinstance(table.get(section), dict):
            hidden[section] = model.hide_secrets(_flatten(table[section]))
    return hidden


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return `table` with dotted names: TOML reads `security.protocol = "SSL"` as nested tables."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _read_file(file: Path | None) -> _Source:
    if file is None:
        return _Source(_Table({}), {})
    try:
        # pydantic-settings reads a missing file, or a directory, as an empty file. `open` raises.
        with file.open("rb"):
            table = TomlConfigSettingsSource(Settings, toml_file=file).toml_data
    except (TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"settings file {str(file)!r} is not valid TOML: {error}") from None
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise SettingError(f"settings file {str(file)!r} cannot be read: {why}. Pass a TOML file") from None
    return _Source(_Table(table), dict.fromkeys(_flatten(table), f"file {file}"))


def _read_environ(environ: Mapping[str, str], problems: list[str]) -> _Source:
    variables: dict[str, str] = {}
    origins: dict[str, str] = {}
    for name in sorted(environ):
        if not name.startswith(_PREFIX) or name in _NOT_SETTINGS or _SERVICE_LINK.fullmatch(f"{name}={environ[name]}"):
            continue
        key = _key_of_variable(name)
        if key in _SECTIONS:
            problems.append(f"{name}: a section has no value. Set {name}__KEY=value")
            continue
        if key is None:
            known = [_PREFIX + key.upper().replace(".", "__") for key in _KEYS]
            problems.append(f"{name}: unknown setting{_nearest(name, known)}")
            continue
        if _NO_TEXT.search(environ[name]):
            problems.append(f"{name}: allowed is UTF-8 text")
            continue
        section, dot, rest = key.partition(".")
        variables[f"{_PREFIX.lower()}{section}{'__' if dot else ''}{rest}"] = environ[name]
        origins[key] = f"environment variable {name}"
    return _Source(_Environment(variables), origins)


def _key_of_variable(name: str) -> str | None:
    """Return the dotted key or the section of the variable `name`, or None if no setting has this name."""
    section, _, rest = name.removeprefix(_PREFIX).partition("__")
    section, model = section.lower(), _SECTIONS.get(section.lower())
    if not rest:
        return section if section in Settings.model_fields else None
    if model is None:
        return None
    if rest.lower() in model.model_fields:
        return f"{section}.{rest.lower()}"
    if not issubclass(model, OptionTable):
        return None
    # A shell cannot set names with dots; `env` and compose files can. The case of Spark's options matters. In
    # other sections the keys are topics. Names of topics may contain `_` and capitals.
    if section in _OPTIONS_OF_CLIENTS and "." not in rest:
        rest = (rest.lower() if rest.isupper() else rest).replace("_", ".")
    return f"{section}.{rest}"


def _read_overrides(overrides: Sequence[str], problems: list[str]) -> _Source:
    table: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        section, dot, rest = key.partition(".")
        if not equals or not _KEY.fullmatch(key):
            # Repeat only the part that is certainly a key: the rest may be a secret.
            start = _KEY.match(override)
            problems.append(f"--set {start[0] if start else ''}…: allowed is --set section.key=value")
        elif _NO_TEXT.search(value):
            problems.append(f"--set {key}: allowed is UTF-8 text")
        elif dot and section in _SECTIONS:
            table.setdefault(section, {})[rest] = value
        elif key in _KEYS:
            table[key] = value
        elif key in _SECTIONS:
            problems.append(f"--set {key}: a section has no value. Write --set {key}.key=value")
        else:
            problems.append(f"--set {key}: unknown setting{_nearest(key, _KEYS)}")
        origins[key] = "--set"
    return _Source(_Table(table), origins)


def _nearest(name: str, known: Sequence[str]) -> str:
    # The same key in another section is a better guess than a similar spelling.
    same = [key for key in known if key.rpartition(".")[2] == name.rpartition(".")[2]]
    near = same[:1] or get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; the sections are {', '.join(_SECTIONS)}"


def _with_origin(sentence: str, origins: Mapping[str, str]) -> str:
    """Add to a sentence that begins with a key where that comes from."""
    key = _KEY.match(sentence)
    origin = origins.get(key[0]) if key and " (from " not in sentence else None
    return f"{sentence} (from {origin})" if origin else sentence


def _sentence(detail: ErrorDetails, origins: Mapping[str, str]) -> str:
    """Return one error of pydantic as a sentence: key, value, allowed values, origin."""
    path = [str(part) for part in detail["loc"] if isinstance(part, str)]
    key, value = ".".join(path), detail["input"]
    origin = origins.get(key, "")
    suffix = f" (from {origin})" if origin else ""
    kind = detail["type"]
    if kind == "extra_forbidden":
        known = _KEYS if len(path) > 1 else [*_KEYS, *_SECTIONS]
        return f"{key}: unknown setting{_nearest(key, known)}{suffix}"
    allowed = allowed_by(detail)
    if not path:
        return allowed
    if path[0] in _SECTIONS and len(path) == 1:
        return f"[{key}]: allowed is {allowed if kind == 'value_error' else 'a table'}{suffix}"
    return f"{key} = {'******' if is_secret(key, value) else repr(value)}: allowed is {allowed}{suffix}"
