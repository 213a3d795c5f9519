"""``dispatcher serve``: events in, and operation, over HTTP."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dispatcher.cli.exits import DONE
from dispatcher.cli.interruption import Interruption
from dispatcher.cli.terminal import Terminal
from dispatcher.errors import ConfigError

if TYPE_CHECKING:
    import socket

    from starlette.applications import Starlette

    from dispatcher.app.servers import Server
    from dispatcher.logs.event_log import EventLog
    from dispatcher.settings.environment import Settings
    from dispatcher.web.auth import Guard

PACKAGES: Final = ("starlette", "uvicorn", "prometheus_client")


@click.command()
@click.option("--host", metavar="ADDRESS", help="Where to listen; 127.0.0.1 unless DISPATCHER_SERVE_HOST is set.")
@click.option("--port", type=click.IntRange(0, 65_535), help="8910 unless DISPATCHER_SERVE_PORT is set; 0 a free one.")
@click.option(
    "--tokens", type=click.Path(path_type=Path), metavar="FILE", help="Who may do what: NAME SCOPES SECRET in a line."
)
@click.option(
    "--create-tokens", is_flag=True, help="If there is no tokens file, write one with one token that may do everything."
)
@click.pass_obj
def serve(terminal: Terminal, host: str | None, port: int | None, tokens: Path | None, *, create_tokens: bool) -> int:
    """Take events over HTTP, and let operators look.

    Without tokens it listens on loopback only. SIGTERM and Ctrl-C finish what is in hand; SIGHUP reads the tokens
    again. Any number may run: nothing is kept in the process.
    """
    try:
        with Interruption(has_limits=True) as interruption, interruption.outranks_errors():
            check_packages()
            _serve(terminal, interruption, host, port, tokens, create=create_tokens)
    except KeyboardInterrupt:
        pass
    return DONE


def missing_packages() -> list[str]:
    """Those of the extra that are not installed."""
    return [name for name in PACKAGES if find_spec(name) is None]


def check_packages(command: str = "serve") -> None:
    """Raise ``ConfigError`` where the extra is not installed, which the command needs."""
    if missing := missing_packages():
        raise ConfigError(
            f"'dispatcher {command}' needs {', '.join(missing)}: install the extra 'serve' of the package, "
            "in a checkout by pip install '.[serve]'"
        )


def _serve(  # noqa: PLR0913 - the options of the command
    terminal: Terminal,
    interruption: Interruption,
    host: str | None,
    port: int | None,
    tokens: Path | None,
    *,
    create: bool,
) -> None:
    from dispatcher.app.servers import kept_server, open_server
    from dispatcher.logs.event_log import process_log
    from dispatcher.settings.loading import load_settings
    from dispatcher.web.auth import create_tokens
    from dispatcher.web.listening import listen

    settings, warnings = load_settings(for_posts=False)
    terminal.hide(settings.secrets())
    host = settings.serve_host if host is None else host
    tokens = tokens or settings.serve_tokens_file
    if create and tokens is None:
        raise ConfigError(
            "no file for the tokens that are to be written: set DISPATCHER_SERVE_TOKENS_FILE, or --tokens"
        )
    created = create and tokens is not None and create_tokens(tokens)
    guard = guard_of(settings, host, tokens)
    with (
        process_log(settings.log_level, settings.log_format, settings.secrets(), text=settings.log_text) as (log, _),
        open_server(settings, start=True) as server,
    ):
        for warning in (*warnings, *server.warnings):
            log.say("setting.warning", detail=warning)
        if created:
            log.say("tokens.created", file=str(tokens))
        with (
            kept_server(settings, log.say),
            listen(host, settings.serve_port if port is None else port) as listening,
        ):
            serve_on(listening, settings, server, guard, log, interruption)


def guard_of(settings: Settings, host: str, tokens: Path | None = None) -> Guard:
    """Who may do what at this address. Raises ``ConfigError``."""
    from dispatcher.core.units import is_loopback
    from dispatcher.web.auth import Guard

    guard = Guard(tokens or settings.serve_tokens_file, settings.serve_trusted_hosts)
    if not guard.has_tokens and not is_loopback(host):
        raise ConfigError(
            f"the address {host} can be reached from elsewhere, and there are no tokens: set "
            "DISPATCHER_SERVE_TOKENS_FILE or --tokens to a file with a line NAME SCOPES SECRET, or listen on 127.0.0.1"
        )
    return guard


def reread_tokens(guard: Guard, log: EventLog) -> bool:
    """Follow what the tokens file says now; whether it could be read. Where it has faults, the tokens before stay."""
    try:
        guard.reread()
    except ConfigError as error:
        log.say("tokens.refused", faults=list(error.problems))
        return False
    return True


def serve_on(  # noqa: PLR0913, PLR0917 - what the process has put together
    listening: socket.socket,
    settings: Settings,
    server: Server,
    guard: Guard,
    log: EventLog,
    interruption: Interruption,
) -> None:
    """Serve on a socket until a signal; returns when what is in hand is finished.

    Raises ``ConfigError`` where a server that answers has another layout, or the queue belongs to another namespace.
    """
    from dispatcher.app.operating import Desk
    from dispatcher.app.serving import Readiness, check_namespace, connect_ingest, open_intake, tell_outages
    from dispatcher.producer.blocking import ANSWER_TIMEOUT_S
    from dispatcher.web.app import App
    from dispatcher.web.hooks import Hooks
    from dispatcher.web.ingest import Ingest
    from dispatcher.web.listening import url_of
    from dispatcher.web.metrics import Metrics
    from dispatcher.web.operating import Operating
    from dispatcher.web.page.routes import Page
    from dispatcher.web.reading import Reading
    from dispatcher.web.server import run
    from dispatcher.web.threads import Threads

    def build() -> Starlette:
        client = connect_ingest(server)
        desk = Desk(settings, server, timeout_s=ANSWER_TIMEOUT_S)
        ingest = Ingest(open_intake(settings, client))
        operating = Operating(desk, threads, log)
        return App(
            guard=guard,
            ingest=ingest,
            reading=Reading(desk, threads),
            operating=operating,
            metrics=Metrics(desk, threads),
            page=Page(guard, desk, operating, threads),
            hooks=Hooks(ingest, desk, threads, log),
            readiness=Readiness(settings, client),
            log=log,
        ).build()

    def begun() -> None:
        interruption.hand_over()
        log.say("serve.started", url=url_of(listening), server=server.shown, tokens=guard.has_tokens)

    def hung_up() -> bool:
        if interruption.hangup.is_end():
            return True
        if reread_tokens(guard, log):
            log.say("tokens.read")
        return False

    async def watch() -> None:
        await tell_outages(Readiness(settings, connect_ingest(server)), server, log.say)

    check_namespace(settings, server)
    with Threads() as threads:
        run(build, listening, begun=begun, hung_up=hung_up, beside=watch)
    log.say("serve.stopped")
