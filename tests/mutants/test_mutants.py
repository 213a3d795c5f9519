"""The tests notice what is broken on purpose."""

from __future__ import annotations

from typing import Final

import pytest

from tests.mutants.harness import Outcome, outcome, outcomes, project_copy, run_tests
from tests.mutants.rules import RULES, Rule
from tests.mutants.score import Score, drawn
from tests.mutants.sources import all_mutants, listed_files, listed_tests, read

SAMPLE: Final = 100
"""So many mutants take some ten minutes on two processors."""
REACHED: Final = 0.88
"""The tests catch 92 of 100 mutants of scripts and more of modules; a sample of this size may say 4 less."""


@pytest.mark.slow
@pytest.mark.parametrize("test", sorted({test for file in listed_files() for test in listed_tests(file)}))
def test_without_a_mutant_these_tests_pass_in_a_copy(test: str) -> None:
    with project_copy() as project:
        assert run_tests(project, [test]) is Outcome.SURVIVED


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_no_mistake_against_a_rule_survives(rule: Rule) -> None:
    assert outcome(rule.mutant(read(rule.file))) is not Outcome.SURVIVED


@pytest.mark.slow
@pytest.mark.alone
def test_of_a_sample_of_all_mutants_as_many_are_caught_as_the_tests_reach() -> None:
    score, survivors = Score(), []
    for mutant, became in outcomes(score.without_equivalents(drawn(all_mutants(), SAMPLE, "1"))):
        score.add(became)
        if became is Outcome.SURVIVED:
            survivors.append(mutant.difference(read(mutant.file)))
    assert score.caught >= REACHED, "\n".join([str(score), *survivors])
