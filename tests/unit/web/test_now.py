"""The view Now, without a server."""

from __future__ import annotations

from collections.abc import ItemsView
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from dispatcher.app.documents.facts import Status
from dispatcher.app.limits import LoadedLimits
from dispatcher.settings.limits_file import read_limits
from dispatcher.store.snapshot import Line, Snapshot
from dispatcher.web.page.looks import Look
from dispatcher.web.page.views import now, waiting

MOST_SHOWN: Final = 100


class Totals(dict[str, int]):
    """The books, which count how often they are read from one end to the other."""

    passes = 0

    def items(self) -> ItemsView[str, int]:  # type: ignore[override] # that of dict is its own class
        self.passes += 1
        return super().items()


def look_at(totals: Totals, names: list[str]) -> Look:
    snapshot = Snapshot(
        now_us=0, waiting=0, events=0, leased=0, requeued=0, parked=0, timers=0, lines={}, deferred={}, dead_letters=0,
        totals=totals, leases={}, cooldowns={}, pause=None,
    )  # fmt: skip
    limits = read_limits("{}", "limits.yaml")
    status = Status(snapshot, dict.fromkeys(names, ()), (), ())
    return Look(status, LoadedLimits(limits.policy, Path("limits.yaml"), limits.warnings, limits.content))


@pytest.mark.parametrize("categories", [1, 10, MOST_SHOWN + 1])
def test_the_books_are_read_as_often_for_many_categories_as_for_one(categories: int) -> None:
    names = [f"c{number}" for number in range(categories)]
    totals = Totals({f"sent {name}": number for number, name in enumerate(names)})
    shown = now(look_at(totals, names), [])
    assert [(row["name"], row["counts"]["sent"]) for row in shown["categories"]] == [
        (name, number) for number, name in enumerate(names[:MOST_SHOWN])
    ]
    one = Totals({"sent c0": 1})
    now(look_at(one, ["c0"]), [])
    assert totals.passes == one.passes


def test_each_line_has_a_key_of_its_own_and_the_name_that_status_gives_it() -> None:
    look = look_at(Totals(), [])
    lines = {
        "category:errors": Line(8, 0, "category:errors"),
        "label:errors:host=db1": Line(7, 0, "label:errors:host=db1"),
        "quiet:category:errors": Line(6, 0, "quiet:nights"),
        "silence:1:errors": Line(5, 0, "silence:1"),
        "channel:errors": Line(4, 0),
        "channel:(webhook)": Line(3, 0),
        "channel:edits": Line(2, 0),
        "paused:errors": Line(1, 0),
    }
    shown = waiting(replace(look.status.snapshot, lines=lines))["lines"]["rows"]
    assert {row["key"]: row["name"] for row in shown} == {
        "category:errors": "errors",
        "label:errors:host=db1": "errors:host=db1",
        "quiet:category:errors": "errors (quiet)",
        "silence:1:errors": "silence:1:errors",
        "channel:errors": "errors",
        "channel:(webhook)": "(webhook)",
        "channel:edits": "(edits)",
        "paused:errors": "errors (paused)",
    }
