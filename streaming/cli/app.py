"""The command line, `delayline`. A command is a function in a module of its own, added to `app` here.

Commands import what they need when they run, so that `--help` is quick and `publish` never loads Spark.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from conf.errors import DelaylineError, Rejected
from streaming.cli.broker import broker, jars
from streaming.cli.checkpoint import rebuild, rescale
from streaming.cli.demo import demo
from streaming.cli.publish import publish
from streaming.cli.repair import repair
from streaming.cli.resend import resend
from streaming.cli.run import run
from streaming.cli.status import status
from streaming.cli.submit_files import submit_files
from streaming.cli.subscribe import subscribe
from streaming.cli.topics import topics_app

INTERRUPTED = 130


class _Commands(TyperGroup):
    """Ends with a sentence and an exit code where an error is known, with a trace only where it is not."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DelaylineError as error:
            typer.echo(f"error: {error}", err=True)
            # What a header may not say is, on the command line, an argument that the caller can mend.
            raise typer.Exit(2 if isinstance(error, Rejected) else error.exit_code) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error


app = typer.Typer(
    name="delayline",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    # A trace with the values of variables could show a password.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Delayed delivery for Kafka: publish with a delay, and the message comes out when it is due.",
    epilog="Exit codes: 0 done, 1 failed, 2 called wrongly (arguments or settings), 130 interrupted.",
)
app.command()(broker)
app.command()(jars)
app.command()(run)
app.add_typer(topics_app, name="topics")
app.command()(publish)
app.command()(subscribe)
app.command()(resend)
app.command()(status)
app.command()(rescale)
app.command()(rebuild)
app.command()(submit_files)
app.command()(repair)
app.command()(demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(version("delayline"))
        except PackageNotFoundError:
            typer.echo("unknown: run from a folder, not installed")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the `delayline` command."""
    app(prog_name="delayline")
