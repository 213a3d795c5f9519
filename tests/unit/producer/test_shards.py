"""The map of shards is stable, even, and moves no more keys than it must."""

from __future__ import annotations

from collections import Counter

import pytest

from dispatcher.shards import Shards

KEYS = [f"tenant-{n}" for n in range(12_000)]


def shards(*names: str) -> Shards:
    return Shards({name: f"redis://:s3cr3t@{name}:6379/0" for name in names})


def test_the_map_is_that_of_every_other_version() -> None:
    three = shards("one", "two", "three")
    known = {
        "errors": "three",
        "deploys": "two",
        "tenant-7": "two",
        "tenant-8": "three",
        "": "one",
        "ä": "two",
        "😀": "one",
    }
    assert {key: three.name_for(key) for key in known} == known


def test_a_key_is_at_the_url_of_its_name() -> None:
    two = shards("one", "two")
    assert {two.url_for(key) for key in KEYS if two.name_for(key) == "one"} == {"redis://:s3cr3t@one:6379/0"}


def test_every_server_gets_an_equal_share() -> None:
    six = shards("a", "b", "c", "d", "e", "f")
    counts = Counter(six.name_for(key) for key in KEYS)
    assert len(counts) == 6
    assert all(1_800 < count < 2_200 for count in counts.values()), counts


def test_a_server_that_is_added_takes_its_share_and_nothing_else_moves() -> None:
    before, after = shards("a", "b", "c"), shards("a", "b", "c", "d")
    moved = [key for key in KEYS if before.name_for(key) != after.name_for(key)]
    assert {after.name_for(key) for key in moved} == {"d"}
    assert 2_800 < len(moved) < 3_200
    assert all(900 < count < 1_100 for count in Counter(before.name_for(key) for key in moved).values())


def test_a_server_that_moves_keeps_its_keys_in_any_order() -> None:
    here = Shards({"a": "redis://a/0", "b": "redis://b/0"})
    there = Shards({"b": "redis://elsewhere/0", "a": "redis://a/0"})
    assert [here.name_for(key) for key in KEYS[:500]] == [there.name_for(key) for key in KEYS[:500]]


def test_no_password_is_shown() -> None:
    assert repr(shards("two", "one")) == "Shards(one, two)"


def test_no_shards_are_refused() -> None:
    with pytest.raises(ValueError, match="no shards, expected a URL for at least one name"):
        Shards({})
