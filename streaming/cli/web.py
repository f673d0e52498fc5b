"""`delayline web`: the page of an operator."""

from __future__ import annotations

import signal
import socket

import typer

from streaming.cli.options import ConfigFile, Overrides, settings_of

# How long the end waits for open requests.
_LEAVE_S = 5


def web(config: ConfigFile = None, overrides: Overrides = None) -> None:
    """Serve a page: due times, lateness, rates, processes, problems; messages, and actions on them.

    Asks the running job at monitor.job, and listens at web.address. Everybody who reaches that address sees counts and
    charts; messages and actions need the token of web.token. Ends with Ctrl-C or SIGTERM. See
    docs/operate/page.md.
    """
    import logging

    from conf.errors import MissingExtra, SettingError, UsageError
    from conf.logs import configure_logging

    settings = settings_of(config, overrides)
    if not settings.monitor.job:
        raise UsageError(
            "monitor.job is not set. The page asks the job at this address. Set it to the address at which the "
            "job listens"
        )
    if not settings.web.address:
        raise UsageError("web.address is empty. Set it to the address to listen on")
    try:
        import uvicorn

        from streaming.web.server import web_app
    except ModuleNotFoundError as missing:
        raise MissingExtra(f"{missing.name} is not installed: pip install 'delayline[web]'") from missing
    from streaming.web.history import History
    from streaming.web.selections import Messages

    configure_logging("info", settings.monitor.log_format)
    host, _, port = settings.web.address.rpartition(":")
    with Messages(settings) as messages, History(settings) as history:
        # Its log lines go through ours.
        server = uvicorn.Server(
            uvicorn.Config(
                web_app(settings, history, messages),
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=_LEAVE_S,
            )
        )
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        try:
            listening = listen(host.strip("[]"), int(port))
        except OSError as problem:
            raise SettingError(
                f"web.address = {settings.web.address!r}: {problem.strerror or problem}. Choose another address"
            ) from problem
        typer.echo(f"the page is at http://{host}:{listening.getsockname()[1]}/")
        # The server ends by these signals, and then sends them again: to a handler that lets Spark be ended first.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        server.run(sockets=[listening])
        # A second signal ends this process at once, as when a look takes long.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there. Raises OSError."""
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
