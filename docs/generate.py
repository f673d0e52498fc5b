"""Generates docs/reference/ from the code: commands, settings, error codes, dead letters, metrics.

    python docs/generate.py            # writes the pages
    python docs/generate.py --check    # writes nothing; exit code 1 if a page does not match the code

Sources: the typer app (`streaming.cli.app`), `conf/delayline.toml` (defaults and their comments), `conf/sections.py`
(allowed values), `conf/errors.py` and `conf/rejected.py` (codes), `docs/reference/remedies.toml` (what to do about each
code), the titles of `docs/operate/runbooks` (which codes have a runbook), and the calls in `streaming/monitor` that
make metrics.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from typer.main import get_command

# The code of this checkout, whichever one is installed in the Python environment.
sys.path.insert(0, str(Path(__file__).parent.parent))

from conf.errors import DelaylineError
from conf.rejected import Rejected
from conf.setting_groups import EVERYBODY, group_of
from conf.settings import Settings
from conf.spark_options import CHECKPOINT_FILE_MANAGER, FIXED_OPTIONS
from conf.topic_tables import PRESETS
from streaming.cli.app import app

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs/reference"
RUNBOOKS = ROOT / "docs/operate/runbooks"
MONITOR = ROOT / "streaming/monitor"
# The modules with the metrics of each program.
_METRICS = {
    "Release processes": ("release_metrics.py",),
    "Forwarders": ("forward_metrics.py",),
    "The job": ("job_metrics.py", "waiting_metrics.py", "held_input.py"),
}
_HEAD = "<!-- Written by docs/generate.py from {source}. Change that, then run `make docs`. -->\n# {title}\n"
_SHARED_OPTIONS = ("--config", "--set")
# The TOML file does not list the keys of the two sections that accept any client option.
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


def pages() -> dict[str, str]:
    """Return the text of each page, by file name."""
    remedies = tomllib.loads((REFERENCE / "remedies.toml").read_text())
    return {
        "commands.md": _commands(),
        "settings.md": _settings(),
        "errors.md": _errors(remedies["errors"]),
        "dead-letters.md": _dead_letters(remedies["dead-letters"]),
        "metrics.md": _metrics(),
    }


def error_codes(root: type[DelaylineError] = DelaylineError) -> dict[str, type[DelaylineError]]:
    """Return the subclasses of `root` that define a code, by code, in the order of the module."""
    errors = {}
    for error in root.__subclasses__():
        if "code" in vars(error):
            errors[error.code] = error
        errors |= error_codes(error)
    return errors


def _commands() -> str:
    group: Any = get_command(app)
    shared = [row for row in _options(group.commands["run"]) if _is_shared(row)]
    lines = [
        _HEAD.format(source="streaming/cli/", title="Commands"),
        f"{group.epilog} SIGTERM and Ctrl-C end `run` and `broker` with 0.\n",
        "`delayline --version` prints the version. All commands but `demo` and `submit-files` take:\n",
        _table(("option", "default", "meaning"), shared),
    ]
    for name, command in _leaves(group):
        arguments = " ".join(_usage(command))
        lines.append(f"\n## delayline {name}\n\n    delayline {name} {arguments}".rstrip())
        lines.append(f"\n{_text(command.help)}\n")
        if own := [row for row in _options(command) if not _is_shared(row)]:
            lines.append(_table(("option", "default", "meaning"), own))
    return "\n".join(lines)


def _leaves(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _leaves(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


def _usage(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            shown = (parameter.metavar or parameter.name).upper()
            yield shown if parameter.required else f"[{shown}]"
        elif parameter.required:
            yield f"{parameter.opts[0]} {_metavar(parameter)}"
    yield "[OPTIONS]"


def _is_shared(row: tuple[str, ...]) -> bool:
    return row[0].strip("`").split()[0] in _SHARED_OPTIONS


def _options(command: Any) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            rows.append((f"`{(parameter.metavar or parameter.name).upper()}`", "", parameter.help or ""))
            continue
        value = "" if parameter.is_flag else f" {_metavar(parameter)}"
        shown = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
        default = "" if shown is None or parameter.is_flag or parameter.required else str(shown)
        rows.append((f"`{parameter.opts[0]}{value}`", default, parameter.help or ""))
    return rows


def _metavar(parameter: Any) -> str:
    annotation = parameter.type_descriptor.annotation
    if parameter.metavar:
        return str(parameter.metavar)
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    return "N" if annotation is int else parameter.opts[0].strip("-").upper()


def _settings() -> str:
    lines = [
        _HEAD.format(source="conf/delayline.toml and conf/sections.py", title="Settings"),
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
        _table(("key", "default"), [(f"`{key}`", f"`{_default(documented, key)}`") for key in EVERYBODY]),
    ]
    for section, keys in documented.items():
        model = Settings if not section else Settings.model_fields[section].annotation
        if section:
            lines.append(f"## [{section}]\n\n{_text(inspect.getdoc(model))}\n")
        if further := _FURTHER_KEYS.get(section):
            lines.append(f"{further}\n")
        prefix = f"{section}." if section else ""
        rows = [
            (f"`{prefix}{key}`", group_of(f"{prefix}{key}"), f"`{default}`", _allowed(model, key), meaning)
            for key, (default, meaning) in keys.items()
        ]
        lines.append(_table(("key", "group", "default", "allowed", "meaning"), rows))
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _default(documented: Mapping[str, Mapping[str, tuple[str, str]]], key: str) -> str:
    section, _, name = key.rpartition(".")
    return documented[section][name][0]


def _documented() -> dict[str, dict[str, tuple[str, str]]]:
    """Return the keys of each section of delayline.toml, each with its default and its comment."""
    sections: dict[str, dict[str, tuple[str, str]]] = {"": {}}
    section, comment = "", []
    lines = iter((ROOT / "conf/delayline.toml").read_text().splitlines())
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


def _errors(remedies: Mapping[str, str]) -> str:
    codes = {code: error for code, error in error_codes().items() if not issubclass(error, Rejected)}
    _check_remedies(codes, remedies, "errors")
    pages = runbooks()
    rows = [
        (f"`{code}`", str(error.exit_code), _text(inspect.getdoc(error)), _remedy(remedies[code], pages.get(code)))
        for code, error in codes.items()
    ]
    return (
        _HEAD.format(source="conf/errors.py and docs/reference/remedies.toml", title="Error codes")
        + "\nA command that fails prints `error: <code>: <message>` on standard error. The message names the problem "
        "and the value that caused it. Codes are stable: scripts may rely on them. The codes of dead letters are on "
        "[a separate page](dead-letters.md).\n\n" + _table(("code", "exit code", "meaning", "what to do"), rows)
    )


def _remedy(remedy: str, runbook: str | None) -> str:
    return _text(remedy) if runbook is None else f"{_text(remedy)} [Runbook](../operate/runbooks/{runbook})."


def runbooks() -> dict[str, str]:
    """Return the file name of each runbook, by the alerts and error codes that its title names."""
    pages: dict[str, str] = {}
    for path in sorted(RUNBOOKS.glob("*.md")):
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        pages |= dict.fromkeys(title.split(", "), path.name)
    return pages


def _dead_letters(remedies: Mapping[str, str]) -> str:
    codes = error_codes(Rejected)
    _check_remedies(codes, remedies, "dead-letters")
    rows = [(f"`{code}`", _text(remedies[code])) for code in codes]
    return (
        _HEAD.format(source="conf/rejected.py and docs/reference/remedies.toml", title="Dead-letter codes")
        + "\nThe header `delayline-error` of a dead letter has one of these codes; `delayline-error-text` has the code "
        "and a message. [Dead letters](../publish/dead-letters.md) describes them.\n\n"
        + _table(("code", "the record"), rows)
    )


def _metrics() -> str:
    lines = [
        _HEAD.format(source="streaming/monitor/", title="Metrics") + "\n",
        "Each process answers at `/metrics` ([addresses](../operate/monitoring.md)). Counters begin at 0 with each "
        "start of a process. The [alert rules](../../conf/monitoring/prometheus-rules.yaml) show which to watch.\n",
    ]
    for program, modules in _METRICS.items():
        rows = [row for module in modules for row in metrics_of((MONITOR / module).read_text())]
        lines.append(f"\n## {program}\n\n" + _table(("metric", "kind", "label", "meaning"), rows))
    return "".join(lines)


def metrics_of(source: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, kind, label and meaning of each metric that a module makes.

    A metric is made by a call with its name and meaning first, of `GaugeMetricFamily` or a function for gauges, or of
    `prometheus_client`'s classes for other kinds.
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or len(node.args) < 2:
            continue
        name, meaning = (
            str(argument.value) if isinstance(argument, ast.Constant) else "" for argument in node.args[:2]
        )
        if not name.startswith("delayline_"):
            continue
        labels = [ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg == "labels"]
        kind = re.sub(r"metricfamily$", "", node.func.id.lower().strip("_"))
        suffix = "_total" if kind == "counter" else ""
        yield f"`{name}{suffix}`", kind, ", ".join(f"`{label}`" for each in labels for label in each), meaning


def _check_remedies(codes: Iterable[str], remedies: Mapping[str, str], table: str) -> None:
    if missing := [code for code in codes if code not in remedies]:
        raise SystemExit(f"docs/reference/remedies.toml: [{table}] lacks {', '.join(missing)}")
    if unknown := [code for code in remedies if code not in codes]:
        raise SystemExit(
            f"docs/reference/remedies.toml: [{table}] has {', '.join(unknown)}, but no error has this code"
        )


def _text(text: str | None) -> str:
    """Return a docstring's paragraphs, each on one line."""
    paragraphs = re.split(r"\n\s*\n", (text or "").strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    # GitHub reads <name> as HTML, except in code.
    parts = re.split(r"(`[^`]*`)", text.replace("\n\n", " ").replace("|", "\\|"))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def write(folder: Path) -> None:
    """Write all pages into `folder`."""
    for name, text in pages().items():
        (folder / name).write_text(text)


def wrong(folder: Path) -> list[str]:
    """Return the names of the pages in `folder` that are outdated, missing or superfluous."""
    texts = pages()
    present = {path.name: path.read_text() for path in folder.glob("*.md")}
    return sorted(name for name in texts | present if texts.get(name) != present.get(name))


def main() -> None:
    """Write the pages, or with `--check` compare them."""
    if "--check" not in sys.argv:
        write(REFERENCE)
    elif names := wrong(REFERENCE):
        raise SystemExit(f"these pages do not match the code: {', '.join(names)}; run `make docs`")


if __name__ == "__main__":
    main()
