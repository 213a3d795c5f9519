"""How a run is to be done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

Size = TypeVar("Size")


class Cores(StrEnum):
    """Where the client and the server run: as the scheduler likes, each on a core of its own, or both on one."""

    FREE = "free"
    APART = "apart"
    TOGETHER = "together"


@dataclass(frozen=True, slots=True)
class Effort:
    """``quick`` is for a look at whether everything works: sizes so small that the figures mean nothing.

    ``scale`` is how much of its backlog ``scripts`` builds, and up to what size ``volume`` grows.
    """

    rounds: int
    quick: bool = False
    peers: bool = True
    cores: Cores = Cores.FREE
    scale: float = 1.0

    def of(self, full: Size, *, quick: Size) -> Size:
        """The size for this run."""
        return quick if self.quick else full
