"""How a command finds its settings and its server: one that is there, or has been; never one of its own making."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dispatcher.errors import ConfigError, GateUnavailable

if TYPE_CHECKING:
    from dispatcher.app.limits import LoadedLimits
    from dispatcher.app.operating import Desk
    from dispatcher.app.servers import Server
    from dispatcher.cli.terminal import Terminal
    from dispatcher.core.policy import Policy
    from dispatcher.settings.environment import Settings
    from dispatcher.settings.plain import AnySettings
    from dispatcher.store.versions import Version


def settings_in_force(terminal: Terminal) -> Settings:
    """The settings of a command that does not post. Their warnings are said at once: one may explain a later fault.

    Raises ``ConfigError``. From here on their secrets stand in no message.
    """
    from dispatcher.settings.loading import load_settings

    settings, warnings = load_settings(for_posts=False)
    _tell(terminal, settings, warnings)
    return settings


def some_settings_in_force(terminal: Terminal) -> AnySettings:
    """As ``settings_in_force``, for a command that needs no more of them than a producer does."""
    from dispatcher.settings.plain import load_some_settings

    settings, warnings = load_some_settings()
    _tell(terminal, settings, warnings)
    return settings


def _tell(terminal: Terminal, settings: AnySettings, warnings: Iterable[str]) -> None:
    terminal.hide(settings.secrets())
    terminal.warn(*warnings)


@contextmanager
def server_to_look_at(terminal: Terminal, settings: AnySettings) -> Iterator[Server]:
    """The server, started for the look if it is the embedded one and has run before. Its warnings are said.

    Raises ``ConfigError`` where none has.
    """
    from dispatcher.app.servers import has_run, open_server

    if settings.redis_url is None and not has_run(settings):
        raise ConfigError(
            f"nothing has run here: no embedded server has ever run in {settings.data_dir}; "
            "set DISPATCHER_DATA_DIR to the one in use, or DISPATCHER_REDIS_URL to the server, "
            "or begin with 'dispatcher up' or 'dispatcher worker'"
        )
    with open_server(settings, start=True) as server:
        terminal.warn(*server.warnings)
        yield server


@contextmanager
def desk_of(terminal: Terminal, settings: AnySettings) -> Iterator[Desk]:
    """The desk of the settings, over ``server_to_look_at``."""
    from dispatcher.app.operating import open_desk

    with server_to_look_at(terminal, settings) as server:
        yield open_desk(settings, server)


@contextmanager
def desk_named(terminal: Terminal, category: str | None = None, *, quiet: bool) -> Iterator[Desk]:
    """The desk of the settings in force.

    Unless ``quiet``, a headline names it before the server is reached, and ``warn_if_unfamiliar`` looks at the
    ``category``.
    """
    from dispatcher.app.operating import Desk

    settings = some_settings_in_force(terminal)
    with server_to_look_at(terminal, settings) as server:
        desk = Desk(settings, server)
        if not quiet:
            terminal.say(namespace_on(desk))
        desk.reach()
        if not quiet:
            warn_if_unfamiliar(terminal, desk, category)
        yield desk


def audited(desk: Desk, what: str, *, about: str = "", why: str = "", count: int | None = None) -> None:
    """Keep in the trail that an operator did this from the command line, unless the server is away by now."""
    from dispatcher.cli.options import operator
    from dispatcher.store.audit import Action

    desk.audit.note(Action(operator(), "cli", what, about, why, count))


@contextmanager
def answer_needed(what: str, look: str) -> Iterator[None]:
    """Where the server's answer to a change is missing, say that nobody knows whether it was made, and where to look.

    ``what`` is such as "it has ended", ``look`` a command.
    """
    try:
        yield
    except GateUnavailable as error:
        from dispatcher.cli.exits import UNREACHABLE, Ended
        from dispatcher.server.connection import is_answer_missing

        if not is_answer_missing(error):
            raise
        raise Ended(UNREACHABLE, f"{error}; whether {what} is not known: '{look}' shows it") from error


def warn_if_unfamiliar(terminal: Terminal, desk: Desk, category: str | None, policy: Policy | None = None) -> None:
    """A category that nobody has heard of may be a slip of the keyboard: that is said, and what is asked is done.

    It is known where an event of it was counted, or where the limits name it: ``policy``, or else those in force.
    """
    from dispatcher.core.limits import NO_CATEGORY

    if category in {None, NO_CATEGORY}:
        return
    known = desk.books.categories()
    if category in known:
        return
    known |= set(policy.categories) if policy is not None else _categories_of_limits(desk)
    if category not in known:
        from difflib import get_close_matches

        near = get_close_matches(str(category), sorted(known), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        terminal.warn(f"no event of category {category} was counted so far, and the limits do not name it{hint}")


def _categories_of_limits(desk: Desk) -> set[str]:
    """The categories that the limits name; none of limits that cannot be read."""
    try:
        return set(desk.limits().policy.categories)
    except ConfigError:
        return set()


def namespace_on(desk: Desk) -> str:
    """The namespace, and the server."""
    return f"namespace {desk.settings.namespace} on {desk.server.shown}"


def headline(desk: Desk, limits: LoadedLimits) -> str:
    """The namespace, the server, and which limits are looked at."""
    return f"{namespace_on(desk)}, limits {limits_named(desk.settings, limits)}"


def limits_named(settings: AnySettings, limits: LoadedLimits) -> str:
    """Which limits are looked at, to stand behind the word "limits".

    It says so where the operator's own file says something else, or has faults.
    """
    from dispatcher.app.limits import compare_own_file

    version = limits.version
    if version is None:
        return f"in {near(limits.path)}"
    named = f"version {version.number}"
    own = compare_own_file(settings, version)
    if own is None or own.is_same is None:
        faults = "" if own is None else f"; {near(own.path)} has faults: 'dispatcher limits check' names them"
        return f"{named}, {origin(version)}{faults}"
    file = near(own.path)
    if own.is_same:
        return f"{named}, as {file} says"
    return f"{named} is in force, NOT what {file} says: 'dispatcher limits apply {file}' publishes it"


def origin(version: Version) -> str:
    """Who published a version, and from where."""
    return f"published by {version.by} from {near(Path(version.file))}"


def near(path: Path) -> str:
    """The path as seen from the folder of the command, if it is below."""
    here = Path.cwd()
    whole = here / path
    return str(whole.relative_to(here) if whole.is_relative_to(here) else whole)
