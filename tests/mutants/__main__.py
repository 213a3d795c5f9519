"""``python -m tests.mutants [NAME PART]`` runs the mutants (those whose name holds NAME PART) and names survivors."""

from __future__ import annotations

import sys

from tests.mutants.deferral import DEFERRAL
from tests.mutants.delivery import DELIVERY
from tests.mutants.digest import DIGEST
from tests.mutants.door import DOOR
from tests.mutants.gate import GATE
from tests.mutants.harness import survivors
from tests.mutants.limiter import LIMITER
from tests.mutants.operator import OPERATOR
from tests.mutants.shadow import SHADOW
from tests.mutants.store import STORE
from tests.mutants.take import TAKE
from tests.mutants.versions import VERSIONS


def main(part: str = "") -> int:
    every = (*GATE, *LIMITER, *TAKE, *STORE, *DEFERRAL, *DELIVERY, *OPERATOR, *VERSIONS, *SHADOW, *DIGEST, *DOOR)
    chosen = [mutant for mutant in every if part in mutant.name]
    alive = survivors(chosen)
    print(f"{len(chosen)} mutants, {len(alive)} survived", *alive, sep="\n  ")  # noqa: T201 - what the command says
    return 1 if alive or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
