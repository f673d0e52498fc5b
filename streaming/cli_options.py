"""Options that every command takes, and how they become settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from conf.settings import Settings

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar="DELAYLINE_CONFIG",
        help="Settings file (TOML). Without it the defaults hold.",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set one key, over the file and the environment: kafka.bootstrap_servers=host:9092. Repeatable.",
        show_default=False,
    ),
]


def settings_of(config: Path | None, overrides: Sequence[str] | None) -> Settings:
    """Load the settings a command was called with. Raises SettingError."""
    # Here and not above: `--help` should not wait for what it does not need.
    from conf.load import load_settings

    return load_settings(config, overrides or ())
