"""The table of an explanation on the page: each fact and each instant is named as what it is."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.app.documents.events import explained_document
from dispatcher.core.explain import Explanation, State
from dispatcher.web.page.views import facts_of, instants_of

AT_S = 1_732_100_000.0


def explained(**told: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of an explanation
    return explained_document(Explanation("a", "a", State.SETTLED, "It ended.", at=AT_S, **told))


@pytest.mark.parametrize(
    ("reason", "limit", "named"),
    [
        ("silenced", None, "Silenced until"),
        ("quiet", None, "Quiet until"),
        ("repeat", "1/4h once", "Repeats until"),
        ("limit:category", "10/30m", "Room at"),
        ("overflow", "10/30m", "Room at"),
        ("of a newer program", None, "Room at"),
    ],
)
def test_the_instant_from_which_it_would_have_passed_is_named_by_its_reason(
    reason: str, limit: str | None, named: str
) -> None:
    told = explained(outcome="dropped", reason=reason, limit=limit, fits_at=AT_S + 1_800)
    assert instants_of(told) == {"Ended": AT_S * 1e6, named: (AT_S + 1_800) * 1e6}


def test_where_held_slots_refused_it_no_instant_is_told() -> None:
    told = explained(outcome="dropped", reason="limit:category", limit="10/30m", fits_at=AT_S + 1_801)
    assert list(instants_of(told)) == ["Ended"]


@pytest.mark.parametrize(("outcome", "named"), [("parked", "Waits for"), ("dropped", "Refused by")])
def test_the_scope_is_what_it_waits_for_or_what_refused_it(outcome: str, named: str) -> None:
    assert facts_of(explained(outcome=outcome, scope="quiet:nights"))[named] == "quiet:nights"
