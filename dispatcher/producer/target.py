"""Where the environment says that events go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dispatcher.server.embedded import EmbeddedServer

ANSWER_TIMEOUT_S: Final = 2.0
"""``QueueUnavailable`` comes within this time."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server, namespace and queue; with the embedded server that is held for as long as it is used."""

    url: str
    namespace: str
    queue: str
    max_waiting: int
    embedded: EmbeddedServer | None

    def __repr__(self) -> str:
        return f"Target(namespace={self.namespace!r}, queue={self.queue!r})"

    def close(self) -> None:
        """Leave the embedded server, which ends with its last client."""
        if self.embedded is not None:
            self.embedded.close()


def target_from_env() -> Target:
    """The target of ``DISPATCHER_REDIS_URL`` and the others. Never starts a server; raises ``ConfigError``."""
    from dispatcher.settings.plain import load_some_settings

    settings, _ = load_some_settings()
    embedded = None
    if settings.redis_url is not None:
        url = settings.redis_url.get_secret_value()
    else:
        from dispatcher.server.embedded import EmbeddedServer

        embedded = EmbeddedServer.join(settings.data_dir, start=False)
        url = embedded.url
    return Target(url, settings.namespace, settings.queue, settings.max_waiting, embedded)
