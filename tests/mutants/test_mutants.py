"""The tests of the scripts notice every mistake that is listed here."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from tests.mutants.deferral import DEFERRAL
from tests.mutants.delivery import DELIVERY
from tests.mutants.digest import DIGEST
from tests.mutants.door import DOOR
from tests.mutants.gate import GATE
from tests.mutants.harness import PROJECT, Mutant, is_noticed, passes, project_copy
from tests.mutants.limiter import LIMITER
from tests.mutants.operator import OPERATOR
from tests.mutants.shadow import SHADOW
from tests.mutants.store import STORE
from tests.mutants.take import TAKE
from tests.mutants.versions import VERSIONS

MUTANTS: Final = (*GATE, *LIMITER, *TAKE, *STORE, *DEFERRAL, *DELIVERY, *OPERATOR, *VERSIONS, *SHADOW, *DIGEST, *DOOR)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_still_applies_to_its_script(mutant: Mutant) -> None:
    text = (PROJECT / mutant.file).read_text(encoding="utf-8")
    assert mutant.applied(text) != text
    assert all((PROJECT / test).exists() for test in mutant.tests)


def test_every_mutant_has_a_name_of_its_own() -> None:
    names = Counter(mutant.name for mutant in MUTANTS)
    assert names.most_common(1)[0][1] == 1


@pytest.mark.slow
@pytest.mark.parametrize("test", sorted({test for mutant in MUTANTS for test in mutant.tests}))
def test_without_a_mutant_these_tests_pass_in_a_copy(test: str) -> None:
    with project_copy() as project:
        assert passes(project, [test])


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_no_mutant_survives(mutant: Mutant) -> None:
    assert is_noticed(mutant)
