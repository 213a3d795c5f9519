"""How a command that looks finds the server: one that is there, or has been; never one of its own making."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dispatcher.errors import ConfigError

if TYPE_CHECKING:
    from dispatcher.app import Server
    from dispatcher.settings import Settings


@contextmanager
def server_to_look_at(settings: Settings) -> Iterator[Server]:
    """The server, started for the look if it is the embedded one and has run before.

    Raises ``ConfigError`` where none has.
    """
    from dispatcher.app import has_run, open_server

    if settings.redis_url is None and not has_run(settings):
        raise ConfigError(
            f"nothing has run here: no embedded server has ever run in {settings.data_dir}; "
            "set DISPATCHER_DATA_DIR to the one in use, or DISPATCHER_REDIS_URL to the server, "
            "or begin with 'dispatcher worker'"
        )
    with open_server(settings, start=True) as server:
        yield server
