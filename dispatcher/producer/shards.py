"""Spreads events over several servers by a stable map: the same key is always at the same server.

from dispatcher.shards import Shards

shards = Shards({"one": "redis://redis-1:6379/0", "two": "redis://redis-2:6379/0"})
shards.url_for("tenant-7")
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b


class Shards:
    """Servers by name, and which of them a key belongs to. Frozen.

    A key goes where the hash of the server's name and the key is highest: rendezvous hashing (Thaler and Ravishankar,
    "Using name-based mappings to increase hit rates", IEEE/ACM Transactions on Networking 6, 1998). Each server gets an
    equal share. One that is added as the n-th takes one n-th of the keys, from all others alike, and one that is taken
    away gives its keys to all others alike. The hash is BLAKE2b, the same in every process and version.

    Only names and keys count: a server may move to another address, an order does not matter. The hash is fixed for
    good; a name that is changed moves the keys.
    """

    __slots__ = ("_seeds", "_urls")

    def __init__(self, urls: Mapping[str, str]) -> None:
        """``urls`` has a URL, as in ``DISPATCHER_REDIS_URL``, for each name. Raises ``ValueError`` without any."""
        if not urls:
            raise ValueError("no shards, expected a URL for at least one name")
        self._urls = dict(urls)
        self._seeds = {name: blake2b(name.encode(), digest_size=32).digest() for name in sorted(urls)}

    def __repr__(self) -> str:
        return f"Shards({', '.join(self._seeds)})"

    @property
    def names(self) -> tuple[str, ...]:
        """The names, sorted."""
        return tuple(self._seeds)

    def name_for(self, key: str) -> str:
        """The name of the server that a key belongs to."""
        return max(self._seeds, key=lambda name: _weight(self._seeds[name], key))

    def url_for(self, key: str) -> str:
        """The URL of the server that a key belongs to."""
        return self._urls[self.name_for(key)]


def _weight(seed: bytes, key: str) -> bytes:
    return blake2b(key.encode(), key=seed, digest_size=8).digest()
