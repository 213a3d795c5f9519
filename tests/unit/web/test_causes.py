"""Who is suppressed by what, and since when: what decisions and the minutes of the books say together."""

from __future__ import annotations

from typing import Any, Final

from dispatcher.app.documents.recent import recent_of
from dispatcher.core.explain import Decision
from dispatcher.core.units import US
from dispatcher.store.counts import Counts
from dispatcher.web.page.views import PAUSE_US, by_books, causes

NOW_US: Final = 1_000 * 60 * US
MINUTE_US: Final = 60 * US
OWN: Final = {"reason": "limit:category", "scope": "category:errors", "limit": "10/30m"}


def dropped(at_us: int, **told: Any) -> Decision:  # noqa: ANN401 - a Decision's fields
    return Decision("e", at_us, "dropped", category="errors", **told)


def test_what_was_before_a_pause_is_told_as_earlier() -> None:
    instants = [NOW_US, NOW_US - PAUSE_US, NOW_US - 2 * PAUSE_US - 1, NOW_US - 2 * PAUSE_US - 2]
    (cause,), _, is_all = causes((dropped(at_us, **OWN) for at_us in instants), 10)
    assert (cause.by, is_all) == ("the limit of category errors, 10 in 30m", True)
    assert (cause.count, cause.since_us, cause.earlier) == (2, instants[1], 2)


def test_repeats_of_one_category_are_one_row_and_silences_one_each() -> None:
    repeats = [dropped(NOW_US, reason="repeat", scope=f"once:{n}", limit="1/4h") for n in range(3)]
    silenced = [dropped(NOW_US, reason="silenced", detail=f"by olga: x (silence {n})") for n in (1, 2, 1)]
    found, newest, _ = causes(iter([*repeats, *silenced]), 2)
    assert [(each.by, each.count) for each in found] == [
        ("repeats: one in 4h is posted", 3),
        ("silenced by olga: x (silence 1)", 2),
        ("silenced by olga: x (silence 2)", 1),
    ]
    assert newest == repeats[:2]


def test_the_books_say_since_when_where_not_all_could_be_counted() -> None:
    found, _, _ = causes(iter([dropped(NOW_US, **OWN), dropped(NOW_US, reason="repeat", limit="1/4h")]), 10)
    minutes = [Counts({"dropped errors limit:category": 9} if ago in {0, 7, 12} else {}) for ago in range(31)]
    by_books(found, recent_of(minutes, NOW_US), NOW_US)
    assert [each.since_us for each in found] == [NOW_US - 12 * MINUTE_US, NOW_US]
