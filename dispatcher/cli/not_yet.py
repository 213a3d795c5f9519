"""What is named but not built yet: refused with a message, never silently ignored, and not shown in the help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from dispatcher.errors import ConfigError

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Commands(click.Group):
    """A group that also knows the names of commands to come."""

    def __init__(self, *, not_yet: Sequence[str] = (), **settings: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(**settings)
        self._not_yet = frozenset(not_yet)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or one that refuses whatever it is given."""
        if cmd_name in self._not_yet:
            return _refusal(f"{ctx.command_path} {cmd_name}")
        return super().get_command(ctx, cmd_name)


def not_yet_option(name: str) -> Callable[[_Function], _Function]:
    """An option that is refused when it is given."""

    def refuse(ctx: click.Context, _option: click.Parameter, given: bool) -> None:  # noqa: FBT001 - click's signature
        if given:
            raise _not_available(f"{ctx.command_path} {name}")

    return click.option(name, is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=refuse)


def _refusal(path: str) -> click.Command:
    def refuse(**_: object) -> None:
        raise _not_available(path)

    return click.Command(
        path.rpartition(" ")[2],
        callback=refuse,
        params=[click.Argument(["anything"], nargs=-1, type=click.UNPROCESSED)],
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )


def _not_available(path: str) -> ConfigError:
    return ConfigError(f"{path} is not available in this version")
