"""The command line, `delayline`. Each command is a function in a separate module, registered with `app` here.

Commands import the service inside their functions, so that `--help` is fast and `publish` never loads Spark.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from conf.errors import DelaylineError
from conf.rejected import Rejected
from streaming.cli.broker import broker, jars
from streaming.cli.cancel import cancel
from streaming.cli.checkpoint import rebuild, rescale
from streaming.cli.deliver_now import deliver_now
from streaming.cli.demo import demo
from streaming.cli.forward import forward
from streaming.cli.health import health
from streaming.cli.peek import peek
from streaming.cli.plan import plan
from streaming.cli.publish import publish
from streaming.cli.release import release
from streaming.cli.repair import repair
from streaming.cli.resend import resend
from streaming.cli.run import run
from streaming.cli.status import status
from streaming.cli.submit_files import submit_files
from streaming.cli.subscribe import subscribe
from streaming.cli.top import top
from streaming.cli.topics import topics_app
from streaming.cli.web import web

INTERRUPTED = 130


class _Commands(TyperGroup):
    """Prints a known error as one sentence and exits with its code; only an unknown error prints a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DelaylineError as error:
            typer.echo(f"error: {error}", err=True)
            # The command line passes header values as arguments: the caller can correct a rejected one.
            raise typer.Exit(2 if isinstance(error, Rejected) else error.exit_code) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error


app = typer.Typer(
    name="delayline",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    # A traceback with the values of variables could show a password.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Delayed delivery for Kafka: publish a message with a delay, and it is delivered when it is due.",
    epilog="Exit codes: 0 success, 1 failure, 2 wrong arguments or settings, 130 interrupted.",
)
app.command()(broker)
app.command()(jars)
app.command()(run)
app.add_typer(topics_app, name="topics")
app.command()(publish)
app.command()(cancel)
app.command()(deliver_now)
app.command()(subscribe)
app.command()(resend)
app.command()(status)
app.command()(health)
app.command()(top)
app.command()(web)
app.command()(peek)
app.command()(release)
app.command()(forward)
app.command()(rescale)
app.command()(rebuild)
app.command()(plan)
app.command()(submit_files)
app.command()(repair)
app.command()(demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(version("delayline"))
        except PackageNotFoundError:
            typer.echo("unknown: the package is not installed")
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
