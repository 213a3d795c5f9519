"""The whole examination, in the order in which an operator would look."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Final

from dispatcher.app.checks import ask_namespace, ask_server, reach_server
from dispatcher.app.limits import open_limits
from dispatcher.app.servers import has_run, open_server
from dispatcher.cli.context import near
from dispatcher.cli.doctor.finding import START, Finding, Level, error, in_two, ok, warning
from dispatcher.cli.doctor.namespace import namespace_findings
from dispatcher.cli.doctor.server import server_findings
from dispatcher.cli.doctor.slack import slack_findings
from dispatcher.core.policy import Policy
from dispatcher.core.units import US
from dispatcher.errors import ConfigError, GateUnavailable
from dispatcher.server.embedded import find_server
from dispatcher.settings.describe import beside_limits
from dispatcher.settings.environment import Settings

_ANOTHER_PLACE: Final = "set DISPATCHER_DATA_DIR to a folder that this user can write, or DISPATCHER_REDIS_URL"


def examine(
    settings: Settings, warnings: Sequence[str], *, clock: Callable[[], float] = time.time
) -> Iterator[Finding]:
    """Every finding, as soon as it is made; raises nothing for what is wrong with the set-up."""
    for text in warnings:
        yield warning("settings", *in_two(text, "; ", "correct it, or take it out"))
    policy = yield from _limits(settings, round(clock() * US))
    if settings.redis_url is None and not has_run(settings):
        yield from _server_to_come(settings)
        ahead_s: float | None = 0.0  # it will run on this machine
    else:
        ahead_s = yield from _server(settings, clock)
    yield from slack_findings(settings, policy, clock, ahead_s)


def _limits(settings: Settings, now_us: int) -> Generator[Finding, None, Policy | None]:
    """Says what is found, and returns what the file says."""
    try:
        limits = open_limits(settings)
    except ConfigError as refusal:
        for problem in refusal.problems:
            yield error("limits", problem, "mend the file; 'dispatcher limits check' reads it again")
        return None
    for text in limits.warnings:
        yield warning("limits", text, "mend the line, unless it is meant as it is")
    count = len(limits.policy.categories)
    named = {0: "names no category, the defaults hold for all", 1: "names 1 category"}.get(
        count, f"names {count} categories"
    )
    yield ok("limits", f"{near(limits.path)} is valid and {named}")
    for sentence in beside_limits(limits.policy, now_us):
        yield ok("limits", sentence.removesuffix("."))
    return limits.policy


def _server_to_come(settings: Settings) -> Iterator[Finding]:
    """Nothing has run in the data dir, and nothing is started for the look."""
    if fault := _unusable(settings.data_dir):
        said = f"the embedded server cannot keep its data in {settings.data_dir}: {fault}"
        yield error("data dir", said, _ANOTHER_PLACE)
    try:
        binary = find_server()
    except ConfigError as refusal:
        yield error("server", *in_two(str(refusal), ": ", "set DISPATCHER_REDIS_URL"))
        return
    said = f"none has run in {settings.data_dir} yet; {START} starts the embedded one, {binary}"
    yield ok("server", said)


def _unusable(path: Path) -> str | None:
    """Why no data can be kept there, as far as that can be known without a try."""
    place = Path(os.path.realpath(path))
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return f"{place} is no folder"
    if not os.access(place, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        return f"this user must not write in {place}"
    return None


def _server(settings: Settings, clock: Callable[[], float]) -> Generator[Finding, None, float | None]:
    """Says what is found, and returns how far this machine's clock is ahead of the server's."""
    ahead_s = None
    try:
        with open_server(settings, start=True) as server:
            for text in server.warnings:
                yield warning("server", *in_two(text, ": ", "look whether anything is missing"))
            with reach_server(server) as client:
                facts = ask_server(client, settings, clock)
                ahead_s = facts.ahead_s
                yield from server_findings(facts, server.shown)
                yield from namespace_findings(ask_namespace(client, settings), settings)
    except (ConfigError, GateUnavailable) as refusal:
        yield Finding(Level.ERROR, "server", str(refusal), _remedy(settings, refusal), refusal)
    return ahead_s


def _remedy(settings: Settings, refusal: ConfigError | GateUnavailable) -> str:
    if settings.redis_url is None:
        log = settings.data_dir / "server.log"
        return f"mend that; the server's own words are in {log}" if os.access(log, os.R_OK) else _ANOTHER_PLACE
    if isinstance(refusal, ConfigError):
        return "correct DISPATCHER_REDIS_URL, or the server's users and their rights"
    return "start the server, or correct DISPATCHER_REDIS_URL"
