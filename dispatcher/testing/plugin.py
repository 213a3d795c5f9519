"""The pytest fixtures, which every project gets that has the dispatcher and pytest installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dispatcher.testing import Setup, SlackStandIn


@pytest.fixture
def slack_stand_in_setup() -> Setup:
    """What the workspace of ``slack_stand_in`` is like; a test or a module that wants another one overrides it."""
    from dispatcher.testing import Setup  # pytest imports this module into every run

    return Setup()


@pytest.fixture
def slack_stand_in(slack_stand_in_setup: Setup) -> Iterator[SlackStandIn]:
    """A local Slack on a free port of 127.0.0.1 with nothing posted; it ends with the test."""
    from dispatcher.testing import SlackStandIn

    with SlackStandIn(setup=slack_stand_in_setup) as stand_in:
        yield stand_in
