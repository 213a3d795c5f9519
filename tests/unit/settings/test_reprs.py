"""What holds a secret shows none where it is printed, as a traceback with its variables does."""

from __future__ import annotations

from typing import Final

from dispatcher.app.servers import Server
from dispatcher.settings.loading import _Found
from dispatcher.settings.sources import Source

SECRET: Final = "s3cr3t"


def test_no_secret_is_in_the_repr_of_a_server() -> None:
    server = Server(f"redis://app:{SECRET}@db:6379/0", "redis://app:***@db:6379/0", ("a warning",))
    assert repr(server) == "Server(shown='redis://app:***@db:6379/0', warnings=('a warning',))"


def test_no_secret_is_in_the_repr_of_variables() -> None:
    source = Source({"DISPATCHER_SLACK_TOKEN": SECRET}, " (in .env)")
    assert repr(source) == "Source(1 variables (in .env))"
    assert SECRET not in repr(_Found("DISPATCHER_SLACK_TOKEN", SECRET, source))
