"""Which ids on the queue begin with a text: those of events that are held or on the lanes, and of what is on record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final

from dispatcher.core.states import is_digest_message
from dispatcher.server.connection import Client, translate_outages
from dispatcher.server.keys import Keys
from dispatcher.store.rq_keys import QueueKeys

NAMED: Final = 5
"""So many ids are found at most, and one more."""

_PAGE: Final = 1_000
_NEAR: Final = 10_000
"""Of longer lanes only so many ids are searched, those that are taken next."""

_GLOB: Final = re.compile(r"([\[\]*?\\])")


def ids_beginning_with(client: Client, keys: Keys, queue: QueueKeys, text: str) -> list[str]:
    """The first few ids; read page by page. Raises ``GateUnavailable`` when the server is away."""
    with translate_outages():
        return list(islice(_distinct(_all(client, keys, queue, text)), NAMED + 1))


def _all(client: Client, keys: Keys, queue: QueueKeys, text: str) -> Iterator[bytes]:
    said: dict[str, Any] = {"match": _GLOB.sub(r"\\\1", text) + "*", "count": _PAGE}
    owners: Any = client.zrange(keys.leases, 0, -1)
    yield from (id_ for id_, _ in client.zscan_iter(keys.parked, **said))
    yield from (id_ for id_, _ in client.zscan_iter(keys.requeued, **said))
    yield from (id_ for id_, _ in client.zscan_iter(keys.removed, **said))
    yield from chain.from_iterable(client.sscan_iter(keys.leased(owner.decode()), **said) for owner in owners)
    for lane in queue.lanes:
        for first in range(0, _NEAR, _PAGE):
            page: Any = client.lrange(lane, first, first + _PAGE - 1)
            yield from (id_ for id_ in page if id_.startswith(text.encode()))
            if len(page) < _PAGE:
                break
    for key in (keys.dead_ids, *keys.decisions):
        yield from (id_ for id_, _ in client.hscan_iter(key, **said))


def _distinct(ids: Iterable[bytes]) -> Iterator[str]:
    met: set[str] = set()
    for raw in ids:
        id_ = raw.decode("utf-8", "replace")
        if id_ not in met and not is_digest_message(id_):
            met.add(id_)
            yield id_
