"""A pytest plugin for mutants: a failure is enough, nobody wants it small."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings


@pytest.hookimpl(trylast=True)  # after tests/conftest.py has loaded the project's profile
def pytest_configure() -> None:
    settings.register_profile("unshrunk", settings(), phases=[Phase.explicit, Phase.generate])
    settings.load_profile("unshrunk")
