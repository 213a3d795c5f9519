"""The whole examination, in the order in which an operator would look."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from dispatcher.app import has_run, open_limits, open_server
from dispatcher.app.checks import ask_namespace, ask_server, reach_server
from dispatcher.cli.doctor.finding import Finding, Level, error, in_two, ok, warning
from dispatcher.cli.doctor.namespace import namespace_findings
from dispatcher.cli.doctor.server import server_findings
from dispatcher.cli.doctor.slack import slack_findings
from dispatcher.embedded import find_server
from dispatcher.errors import ConfigError, GateUnavailable
from dispatcher.settings import Settings


def examine(settings: Settings, doubts: Sequence[str], *, clock: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Every finding, as soon as it is made; raises nothing for what is wrong with the set-up."""
    for doubt in doubts:
        yield warning("settings", *in_two(doubt, "; ", "correct it, or take it out"))
    yield from _limits(settings)
    if settings.redis_url is None and not has_run(settings):
        yield _server_to_come(settings)
    else:
        yield from _server(settings, clock)
    yield from slack_findings(settings)


def _limits(settings: Settings) -> Iterator[Finding]:
    try:
        limits = open_limits(settings)
    except ConfigError as refusal:
        for problem in refusal.problems:
            yield error("limits", problem, "mend the file; 'dispatcher limits check' reads it again")
        return
    for doubt in limits.warnings:
        yield warning("limits", doubt, "mend the line, unless it is meant as it is")
    count = len(limits.policy.categories)
    named = {0: "names no category, the defaults hold for all", 1: "names 1 category"}.get(
        count, f"names {count} categories"
    )
    yield ok("limits", f"{limits.path} is valid and {named}")


def _server_to_come(settings: Settings) -> Finding:
    """Nothing has run in the data dir, and nothing is started for the look."""
    try:
        binary = find_server()
    except ConfigError as refusal:
        return error("server", *in_two(str(refusal), ": ", "set DISPATCHER_REDIS_URL"))
    return ok("server", f"none has run in {settings.data_dir} yet; the first worker starts the embedded one, {binary}")


def _server(settings: Settings, clock: Callable[[], float]) -> Iterator[Finding]:
    try:
        with open_server(settings, start=True) as server:
            for doubt in server.warnings:
                yield warning("server", *in_two(doubt, ": ", "look whether anything is missing"))
            with reach_server(server) as client:
                yield from server_findings(ask_server(client, clock), server.shown)
                yield from namespace_findings(ask_namespace(client, settings), settings)
    except (ConfigError, GateUnavailable) as refusal:
        yield Finding(Level.ERROR, "server", str(refusal), _remedy(settings, refusal), refusal)


def _remedy(settings: Settings, refusal: ConfigError | GateUnavailable) -> str:
    if settings.redis_url is None:
        return f"mend that; the server's own words are in {settings.data_dir / 'server.log'}"
    if isinstance(refusal, ConfigError):
        return "correct DISPATCHER_REDIS_URL, or the server's users and their rights"
    return "start the server, or correct DISPATCHER_REDIS_URL"
