"""Draws a sample of the mutants, and counts what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256

from tests.mutants.change import Mutant
from tests.mutants.equivalents import equivalents
from tests.mutants.harness import Outcome


def drawn(mutants: Iterable[Mutant], count: int, seed: str) -> list[Mutant]:
    """So many of them, by chance that depends on names and seed: a change of one file leaves the others' in."""
    return sorted(mutants, key=lambda each: sha256(f"{seed}\n{each.name}".encode()).digest())[:count]


class Score:
    """How many were caught, survived, or are known to be equivalent and did not run."""

    def __init__(self) -> None:
        self._outcomes: Counter[Outcome] = Counter()
        self._equivalent = 0

    def without_equivalents(self, mutants: Sequence[Mutant]) -> list[Mutant]:
        """Those that a test has to notice; the others are counted."""
        known = equivalents()
        rest = [mutant for mutant in mutants if mutant.name not in known]
        self._equivalent += len(mutants) - len(rest)
        return rest

    def add(self, outcome: Outcome) -> None:
        self._outcomes[outcome] += 1

    @property
    def ran(self) -> int:
        return self._outcomes.total()

    @property
    def survived(self) -> int:
        return self._outcomes[Outcome.SURVIVED]

    @property
    def caught(self) -> float:
        """The share that was caught, from 0 to 1."""
        return 1 - self.survived / self.ran

    def __str__(self) -> str:
        """In words: ``97.5 % of 120 caught (2 hung), 3 survived; 4 equivalent``."""
        share = f"{self.caught:.1%} of {self.ran} caught" if self.ran else "none ran"
        return f"{share} ({self._outcomes[Outcome.HUNG]} hung), {self.survived} survived; {self._equivalent} equivalent"
