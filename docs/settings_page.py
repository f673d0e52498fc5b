"""The generated page of all settings, for `docs/generate.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from conf.setting_groups import EVERYBODY, group_of
from conf.settings import Settings
from conf.spark_options import CHECKPOINT_FILE_MANAGER, FIXED_OPTIONS
from conf.topic_tables import PRESETS
from docs.tables import HEAD, table, text_of

_FILE = Path(__file__).parent.parent / "conf/delayline.toml"
# Sections that accept more keys than the TOML file lists.
_FURTHER_KEYS = {
    "kafka": "Other keys are options of Kafka clients under their own names, such as `security.protocol`. Delayline "
    "passes each to every client (Java, librdkafka, kafka-python) that has it, in that client's spelling. It refuses a "
    "key that no client has, or that it sets itself. See [TLS and logins](../platform/security.md).",
    "policies": 'A table for an input topic, such as `[policies."orders-delayed"]`, has the same keys; what it leaves '
    "out is as for all topics. `--set policies.orders-delayed.default_delay=5m` sets one. Delays count from the "
    "record's timestamp.",
    "presets": "Every key is an input topic, and its value one or more of `"
    + "`, `".join(PRESETS)
    + "`, separated by commas. See [Coming from another scheduler](../publish/coming-from/README.md).",
    "rates": "Every key is an output topic, and its value a whole number of messages a second, 1 or more. `release."
    "messages_per_second` limits all topics together.",
    "spark": "Every key is the name of a Spark option and begins with `spark.`. It overrides Delayline's default. "
    "Refused are those that the service rests on: `" + "`, `".join(FIXED_OPTIONS) + f"`, and on S3 "
    f"`{CHECKPOINT_FILE_MANAGER}`.",
}


def settings_page() -> str:
    """Return the text of the page."""
    lines = [
        HEAD.format(source="conf/delayline.toml and conf/sections.py", title="Settings"),
        "Values come from the defaults, the TOML file (`--config` or `DELAYLINE_CONFIG`), environment variables such "
        "as `DELAYLINE_BUCKET__SHARDS=4`, and `--set bucket.shards=4`. Later sources override earlier ones. Durations "
        "are ms, a number with a unit (`1500ms`, `10s`, `5m`, `2h`, `30d`, `1w`), or ISO-8601 (`PT10S`). A wrong value "
        "ends the command with [`bad-setting`](errors.md); the error has the key, the value, the allowed values, and "
        "the source of the value.\n",
    ]
    documented = _documented()
    lines += [
        "The column *group* says who sets a key: everybody, operators of a large or unusual deployment, or, as an "
        "advanced setting, somebody who measures before and after. Everybody decides about these eight:\n",
        table(("key", "default"), [(f"`{key}`", f"`{_default(documented, key)}`") for key in EVERYBODY]),
    ]
    for section, keys in documented.items():
        model = Settings if not section else Settings.model_fields[section].annotation
        if section:
            lines.append(f"## [{section}]\n\n{text_of(inspect.getdoc(model))}\n")
        if further := _FURTHER_KEYS.get(section):
            lines.append(f"{further}\n")
        prefix = f"{section}." if section else ""
        rows = [
            (f"`{prefix}{key}`", group_of(f"{prefix}{key}"), f"`{default}`", _allowed(model, key), meaning)
            for key, (default, meaning) in keys.items()
        ]
        lines.append(table(("key", "group", "default", "allowed", "meaning"), rows))
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _default(documented: Mapping[str, Mapping[str, tuple[str, str]]], key: str) -> str:
    section, _, name = key.rpartition(".")
    return documented[section][name][0]


def _documented() -> dict[str, dict[str, tuple[str, str]]]:
    """Return the keys of each section of delayline.toml, each with its default and its comment."""
    sections: dict[str, dict[str, tuple[str, str]]] = {"": {}}
    section, comment = "", []
    lines = iter(_FILE.read_text().splitlines())
    for line in lines:
        if line.startswith("# "):
            comment.append(line.removeprefix("# "))
        elif line.startswith("["):
            section, comment = line.strip("[]"), []
            sections[section] = {}
        elif " = " in line:
            key, value = line.split(" = ", 1)
            while value.count("[") > value.count("]"):
                value += next(lines).strip()
            value = value.replace(",]", "]").replace("[ ", "[")
            # The group of a key has a column of its own.
            sections[section][key] = (value, " ".join(comment).removeprefix("Advanced. "))
            comment = []
        else:
            comment = []
    return sections


def _allowed(model: Any, key: str) -> str:
    """Return the allowed values of a key, from the model's error for a wrong value."""
    if key.startswith('"'):
        return "as Spark documents it"
    if model.model_fields[key].annotation is bool:
        return "`true` or `false`"
    many = str(model.model_fields[key].annotation).startswith("tuple")
    for wrong in ("", "\n", "delayline-"):
        try:
            model.model_validate({key: [wrong] if many else wrong})
        except ValidationError as problem:
            sentence = problem.errors()[0]["msg"].removeprefix("Value error, ")
            sentence = re.sub(r", written as .*", "", sentence)
            return f"a list, each {sentence}" if many else sentence
    raise AssertionError(f"{key} takes anything")
