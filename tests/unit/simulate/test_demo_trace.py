"""The trace that comes along: the story of the demo within half a minute."""

from __future__ import annotations

from dispatcher.cli.demo.story import scenes
from dispatcher.data_files import data_file
from dispatcher.simulate.arrivals import Arrivals
from dispatcher.simulate.trace import read_trace


def test_it_tells_the_story_of_the_demo() -> None:
    with Arrivals() as arrivals, data_file("config", "demo-trace.jsonl").open("rb") as file:
        read_trace(file, "demo-trace.jsonl", arrivals)
        came = [(each.at_us - arrivals.first_us, each.category) for each in arrivals]
    story = scenes()
    assert [category for _, category in came] == [scene.source.category for scene in story]
    first = story[0].at
    assert all(abs(at_us / 30e6 - (scene.at - first)) < 1e-4 for (at_us, _), scene in zip(came, story, strict=True))
