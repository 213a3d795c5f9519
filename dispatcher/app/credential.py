"""Reads the token or webhook again, which may have been replaced in its file since the worker started."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dispatcher.app.building import build_sink, requests_of
from dispatcher.core.ports import Sink
from dispatcher.settings.environment import Settings


class Credential:
    """What a worker posts with. ``read`` reads all settings again; of these only the token and the webhook count.

    ``hide`` is told of every new secret before anything is posted with it. Each new sink counts its requests where the
    first one, ``sink``, does.
    """

    def __init__(
        self, settings: Settings, sink: Sink, read: Callable[[], Settings], hide: Callable[[Iterable[str]], None]
    ) -> None:
        self._requests = requests_of(sink)
        self._settings = settings
        self._read = read
        self._hide = hide

    def renewed(self) -> Sink | None:
        """A sink that posts with what is set now; None if that is what was set before. Raises ``ConfigError``."""
        before, found = self._settings, self._read()
        given = {"slack_token": found.slack_token, "slack_webhook_url": found.slack_webhook_url}
        after = before.model_copy(update=given)
        if after == before:
            return None
        self._hide(after.secrets())
        sink = build_sink(after, self._requests)
        self._settings = after
        return sink
