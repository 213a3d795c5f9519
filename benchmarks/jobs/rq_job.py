"""The job of RQ's worker."""

from __future__ import annotations

import os

from redis import Redis

from benchmarks.recipe import RECIPE

_CLIENT = Redis.from_url(os.environ["STORM_SERVER"])
_RECIPE = _CLIENT.register_script(RECIPE)
_LIMITS = os.environ["STORM_LIMITS"].split()


def decide(category: str, text: str, count: int) -> int:
    """One EVALSHA; 1 when there was room."""
    del text
    return int(_RECIPE(keys=["recipe:global", f"recipe:{category}"], args=[*_LIMITS, count]))
