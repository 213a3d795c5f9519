"""What one version of the limits changed against another, as the view of the limits shows it."""

from __future__ import annotations

from dataclasses import replace

from dispatcher.settings.content import Content
from dispatcher.settings.limits_file import read_limits
from dispatcher.web.page.views import compared


def content_of(limit: str) -> Content:
    return read_limits(f"defaults: {{limits: [{limit}]}}", "limits.yaml").content


def test_two_versions_are_compared_once_for_all_viewers() -> None:
    before, after = content_of("3/1d"), content_of("4/1d")
    begun = compared.cache_info()
    assert compared(before, after) == compared(replace(before), replace(after))
    ended = compared.cache_info()
    assert (ended.hits, ended.misses) == (begun.hits + 1, begun.misses + 1)


def test_a_version_that_this_program_cannot_read_is_not_compared() -> None:
    assert compared(Content('{"of_another_program": 1}', "0" * 16), content_of("4/1d")) is None
