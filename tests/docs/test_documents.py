"""Everything that a document names exists: files, links, settings, commands and their options, codes, make targets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from typer.main import get_command

from conf.errors import DelaylineError
from conf.failpoints import ALL_POINTS
from conf.sections import HeaderSettings, TopicSettings
from conf.setting_types import OptionTable
from conf.settings import Settings
from conf.topic_tables import PRESETS
from sources.intake.presets import presets_named
from state.names import KEEP_TIME
from state.reasons import RESULTS, Reason
from streaming.cli.app import app
from tests.docs.documents import ROOT, Document, Quote, all_documents, all_quotes

_REASON = re.compile(r"^\| `([\w-]+)` \| `([\w-]+)` \| ", re.MULTILINE)
_PACKAGES = "conf|sources|state|sinks|streaming"
_PATH = re.compile(rf"((?:{_PACKAGES}|tests|benchmarks|docs|examples|\.ci)/[\w./*-]*)(?:: ?(\w+))?")
_MODULE = re.compile(rf"(?:{_PACKAGES}|benchmarks)(?:\.\w+)+")
_FILE = re.compile(r"\.(?:py|md|toml|json|txt|properties|jar|sha256)$")
_SECTIONS = {name: field.annotation for name, field in Settings.model_fields.items() if name != "application_id"}
_SETTING = re.compile(rf"(?<![\w./-])({'|'.join(_SECTIONS)})\.([\w.]+)")
_VARIABLE = re.compile(r"DELAYLINE_[A-Z_]+")
_OTHER_VARIABLES = {"DELAYLINE_CONFIG", "DELAYLINE_FAILPOINT", "DELAYLINE_FAILPOINT_ROOT"}
_KEBAB = re.compile(r"[a-z]+(?:-[a-z]+)+")
_COMMANDS: Any = get_command(app)
# Options and words of other programs, quoted in explanations.
_OTHERS_OPTIONS = {
    "--previous",
    "--properties-file",
    "--archives",
    "--files",
    "--command-config",
    "--supervise",
    "--deploy-mode",
    "--driver-memory",
    "--replicas",
    "--rm",
    "--messages",
    "--scale",
    "--use-aliases",
    "--load-spark-defaults",
    "--out",
}
_OTHERS_WORDS = {
    "spark-submit",
    "kafka-python",
    "franz-go",
    "pre-commit",
    "confluent-kafka",
    "import-linter",
    "aws-msk-iam-auth",
    "aws-msk-iam-sasl-signer-python",
}


def failing(quotes: Iterable[Quote], check: Any) -> list[str]:
    return [f"{quote.place}: {wrong}" for quote in quotes for wrong in check(quote.text)]


def test_every_link_has_a_target() -> None:
    assert [wrong for document in all_documents() for wrong in broken_links(document)] == []


def broken_links(document: Document) -> Iterator[str]:
    for place, target in document.links():
        file, _, anchor = target.partition("#")
        path = (document.path.parent / file).resolve() if file else document.path
        if not path.exists():
            yield f"{place}: {target}: no such file"
        elif anchor and anchor not in Document(path).anchors:
            yield f"{place}: {target}: no such heading"


def test_files_and_modules_that_are_named_exist() -> None:
    assert failing(all_quotes(), missing_files) == []


def missing_files(text: str) -> Iterator[str]:
    for match in _PATH.finditer(text):
        path, symbol = match[1].rstrip("."), match[2]
        if text[: match.start()].endswith(("/", "-", ".", "$", "_")) or "…" in text:
            continue
        paths = list(ROOT.glob(path)) if "*" in path else [ROOT / path]
        if not paths or not all(each.exists() for each in paths):
            yield f"{path} does not exist"
        elif symbol and not re.search(rf"\b{symbol}\b", paths[0].read_text()):
            yield f"{path} has no {symbol}"
    if _MODULE.fullmatch(text) and not _FILE.search(text) and not resolves(text):
        yield f"no module or name {text}"


def resolves(name: str) -> bool:
    """Return whether `name` is a package, a module, or a name in one."""
    module, _, attribute = name.rpartition(".")
    path, home = ROOT / name.replace(".", "/"), ROOT / module.replace(".", "/")
    source = home.with_suffix(".py") if home.with_suffix(".py").exists() else home / "__init__.py"
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    return source.exists() and bool(re.search(rf"^(?:def |class )?{attribute}\b", source.read_text(), re.MULTILINE))


def test_the_reasons_of_answers_are_those_of_the_code_in_its_order() -> None:
    documented = _REASON.findall((ROOT / "docs/publish/cancelling.md").read_text())
    assert documented == [(reason.result, reason.code) for reason in Reason]


def test_settings_that_are_named_exist() -> None:
    assert failing(all_quotes(), missing_settings) == []


def missing_settings(text: str) -> Iterator[str]:
    for section, key in _SETTING.findall(text):
        model: Any = _SECTIONS[section]
        named = key.split(".")[0]
        further = issubclass(model, OptionTable) and (section in ("spark", "policies") or "." in key)
        if not further and named not in model.model_fields and not _FILE.search(f"{section}.{key}"):
            yield f"no setting {section}.{named}"
    for variable in _VARIABLE.findall(text):
        section, _, key = variable.removeprefix("DELAYLINE_").lower().partition("__")
        model = _SECTIONS.get(section)
        known = key in model.model_fields or issubclass(model, OptionTable) if model else section == "application_id"
        if variable.rstrip("_") not in _OTHER_VARIABLES and variable != "DELAYLINE_" and not known:
            yield f"no setting {variable}"


def test_commands_and_options_that_are_named_exist() -> None:
    assert failing(all_quotes(), wrong_commands) == []


def options_of(command: Any) -> set[str]:
    return {"--help", *(option for parameter in command.params for option in parameter.opts)}


def all_options(command: Any) -> set[str]:
    return options_of(command).union(*(all_options(each) for each in getattr(command, "commands", {}).values()))


def wrong_commands(text: str) -> Iterator[str]:
    if text.startswith("--"):
        option = text.split(maxsplit=1)[0].split("=", maxsplit=1)[0]
        if option not in all_options(_COMMANDS) | _OTHERS_OPTIONS:
            yield f"no command has {option}"
        return
    words = shlex.split(text.replace("'", ""), comments=True) if re.search(r"delayline(_job\.py)? ", text) else []
    for at, word in enumerate(words):
        if word.rpartition("/")[2] in ("delayline", "delayline_job.py"):
            yield from wrong_call(words[at + 1 :])


def wrong_call(words: list[str]) -> Iterator[str]:
    command, names = _COMMANDS, []
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words[0]]
        names.append(words.pop(0))
    if not names and words and re.fullmatch(r"[a-z][\w-]*", words[0]):
        yield f"no command {words[0]}"
    for word in words:
        if word in ("|", "&&", ";"):
            return
        if word.startswith("--") and word.split("=")[0] not in options_of(command):
            yield f"delayline {' '.join(names)} has no {word}"


def known_words() -> set[str]:
    """Return every hyphenated word that the code defines."""
    codes, todo = set(), [DelaylineError]
    while todo:
        error = todo.pop()
        codes.add(error.code)
        todo += error.__subclasses__()
    headers = {*HeaderSettings().model_dump().values()}
    topics = {*TopicSettings().input, TopicSettings().output, TopicSettings().dead_letter}
    presets = set(PRESETS)
    for preset in presets_named(PRESETS):
        presets |= {header.name for header in preset.schedule} | {name for name, _ in preset.origin}
        presets |= {preset.target or "", preset.key}
    return (
        codes
        | headers
        | topics
        | presets
        | set(ALL_POINTS)
        | {"submit-files", KEEP_TIME, *RESULTS, *(reason.code for reason in Reason), *_OTHERS_WORDS}
    )


def test_codes_headers_and_topics_that_are_named_exist() -> None:
    known = known_words()

    def unknown(text: str) -> Iterator[str]:
        if _KEBAB.fullmatch(text) and text not in known and not text.startswith("delayline-"):
            yield f"{text} is no error code, header, topic or failpoint"

    assert failing(all_quotes(), unknown) == []


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    def unknown(text: str) -> Iterator[str]:
        for target in re.findall(r"^make ([a-z-]+)", text):
            if target not in targets:
                yield f"no make target {target}"

    assert failing(all_quotes(), unknown) == []
    assert list(unknown("make test-nothing"))


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (missing_files, "streaming/jobs/query.py"),
        (missing_files, "streaming/job/query.py: no_such_function"),
        (missing_files, "state.buckets.gone"),
        (missing_settings, "bucket.sharts"),
        (missing_settings, "delayline run --set kafka.outage=5m"),
        (missing_settings, "DELAYLINE_BUCKET__SHARTS=4"),
        (wrong_commands, "delayline rescue"),
        (wrong_commands, "env/bin/delayline rebuild --force"),
        (wrong_commands, "delayline topics create --shards 4"),
        (wrong_commands, "--skip-all"),
    ],
)
def test_the_checks_find_names_that_do_not_exist(check: Any, text: str) -> None:
    assert list(check(text)), text
