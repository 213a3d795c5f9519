"""The cases of ``--expect``: what they are held against, and what is no case."""

from __future__ import annotations

import pytest

from dispatcher.core.limits import Limit
from dispatcher.core.policy import CategoryRule, OnLimit, Policy
from dispatcher.simulate.arrivals import Arrival
from dispatcher.simulate.cases import Case, CasesError, read_cases
from dispatcher.simulate.course import Course
from dispatcher.simulate.figures import Bars
from dispatcher.simulate.fleet import Clock

POLICY = Policy((), CategoryRule((Limit.parse("1/1h"),), "#a", OnLimit.DROP, 1), {}, None)


def test_a_case_holds_within_its_bounds() -> None:
    course = Course(POLICY, Clock(), Bars(0, 1))
    for n in range(3):
        course.offer(str(n), Arrival(0, n, "errors"), 0)
    course.finish()
    text = (
        "- {category: errors, outcome: offered, min: 3, max: 3}\n"
        "- {category: errors, outcome: waiting, max: 2}\n"
        "- category: news\n  outcome: sent\n  min: 1\n"
        "- {category: erors, outcome: dropped, max: 0}\n"
        "- {category: erors, outcome: offered, max: 0}\n"
        "- {category: errors, outcome: dropped, max: 0}\n"
    )
    cases = read_cases(text, "cases.yaml")
    assert cases[0] == Case(1, "errors", "offered", 3, 3)
    assert [case.failure(course) for case in cases] == [
        None,
        "line 2: 3 of errors are waiting, expected at most 2",
        "line 3: 0 of news are sent, expected at least 1",
        "line 6: no event of erors came, expected some, or another name",
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cases.yaml: line 1, column 1: expected a list of cases such as {category: errors"),
        ("{a: 1}", "line 1, column 1: expected a list of cases"),
        ("- 7", "line 1, column 3: 7, expected a case with category, outcome, min, max"),
        ("- {category: a, outcome: sent, min: 1, mx: 2}", "column 44: mx is 2, expected no other keys than category"),
        ("- {outcome: sent, min: 1}", "line 1, column 3: category is missing, expected the name of a category"),
        ("- {category: a, outcome: gone, min: 1}", "column 26: outcome is 'gone', expected one of offered, sent"),
        ("- {category: a, outcome: sent}", "min is missing, expected min or max, or both"),
        ("- {category: a, outcome: sent, min: 1.5}", "min is 1.5, expected a whole number, 0 or more"),
        ("- {category: a, outcome: sent, min: 3, max: 2}", "max is 2, expected no less than min, which is 3"),
        ("- a: [", "line 1"),
    ],
)
def test_what_is_no_case_is_told_with_its_line(text: str, said: str) -> None:
    with pytest.raises(CasesError) as told:
        read_cases(text, "cases.yaml")
    assert said in str(told.value)
