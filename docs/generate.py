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

from typer.main import get_command

# The code of this checkout, whichever one is installed in the Python environment.
sys.path.insert(0, str(Path(__file__).parent.parent))

from conf.errors import DelaylineError
from conf.rejected import Rejected
from docs.settings_page import settings_page
from docs.tables import HEAD, table, text_of
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
_SHARED_OPTIONS = ("--config", "--set")


def pages() -> dict[str, str]:
    """Return the text of each page, by file name."""
    remedies = tomllib.loads((REFERENCE / "remedies.toml").read_text())
    return {
        "commands.md": _commands(),
        "settings.md": settings_page(),
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
        HEAD.format(source="streaming/cli/", title="Commands"),
        f"{group.epilog} SIGTERM and Ctrl-C end `run` and `broker` with 0.\n",
        "`delayline --version` prints the version. All commands but `demo` and `submit-files` take:\n",
        table(("option", "default", "meaning"), shared),
    ]
    for name, command in _leaves(group):
        arguments = " ".join(_usage(command))
        lines.append(f"\n## delayline {name}\n\n    delayline {name} {arguments}".rstrip())
        lines.append(f"\n{text_of(command.help)}\n")
        if own := [row for row in _options(command) if not _is_shared(row)]:
            lines.append(table(("option", "default", "meaning"), own))
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


def _errors(remedies: Mapping[str, str]) -> str:
    codes = {code: error for code, error in error_codes().items() if not issubclass(error, Rejected)}
    _check_remedies(codes, remedies, "errors")
    pages = runbooks()
    rows = [
        (f"`{code}`", text_of(inspect.getdoc(error)), _remedy(remedies[code], pages.get(code)))
        for code, error in codes.items()
    ]
    wrong_calls = " and ".join(f"`{code}`" for code, error in codes.items() if error.exit_code == 2)
    return (
        HEAD.format(source="conf/errors.py and docs/reference/remedies.toml", title="Error codes")
        + "\nA command that fails prints `error: <code>: <message>` on standard error. The message names the problem "
        "and the value that caused it. Codes are stable: scripts may rely on them. The codes of dead letters are on "
        f"[a separate page](dead-letters.md).\n\nExit code 2 for {wrong_calls}, 1 for all others.\n\n"
        + table(("code", "meaning", "what to do"), rows)
    )


def _remedy(remedy: str, runbook: str | None) -> str:
    return text_of(remedy) if runbook is None else f"{text_of(remedy)} [Runbook](../operate/runbooks/{runbook})."


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
    rows = [(f"`{code}`", text_of(remedies[code])) for code in codes]
    return (
        HEAD.format(source="conf/rejected.py and docs/reference/remedies.toml", title="Dead-letter codes")
        + "\nThe header `delayline-error` of a dead letter has one of these codes; `delayline-error-text` has the code "
        "and a message. [Dead letters](../publish/dead-letters.md) describes them.\n\n"
        + table(("code", "the record"), rows)
    )


def _metrics() -> str:
    lines = [
        HEAD.format(source="streaming/monitor/", title="Metrics") + "\n",
        "Each process answers at `/metrics` ([addresses](../operate/monitoring.md)). Counters begin at 0 with each "
        "start of a process. The [alert rules](../../conf/monitoring/prometheus-rules.yaml) show which to watch.\n",
    ]
    for program, modules in _METRICS.items():
        rows = [row for module in modules for row in metrics_of((MONITOR / module).read_text())]
        lines.append(f"\n## {program}\n\n" + table(("metric", "kind", "label", "meaning"), rows))
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
