"""``dispatcher demo``: the promised figures, on nothing of the user's own, with nothing left behind."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from dispatcher.cli.demo.story import EACH, SOURCES, scenes
from dispatcher.cli.demo.view import Moment, live_view, summary
from dispatcher.store.snapshot import Snapshot
from tests.support.commands import Streams, ended, run, run_on, started, terminal
from tests.support.processes import until
from tests.support.screens import Emulator

NONSENSE = {
    "DISPATCHER_REDIS_URL": "redis://nowhere.invalid:1/0",
    "REDIS_URL": "nonsense",
    "DISPATCHER_LIMITS_FILE": "/does/not/exist.yaml",
    "DISPATCHER_NAMESPACE": "{}",
    "DISPATCHER_BATCH": "many",
    "DISPATCHER_SINK": "console",
    "SLACK_BOT_TOKEN": "xoxb-real-one",
    "DISPATCHER_SLACK_WEBHOOK_URL": "https://hooks.slack.com/services/T1/B1/real",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "http_proxy": "http://127.0.0.1:9",
}


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    path = tmp_path / "t"
    path.mkdir()
    return path


def processes_of(session: int, temporary: Path) -> list[str]:
    """The command lines of all processes in a session, or that work in the temporary directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, *fields = (entry / "stat").read_text().rpartition(")")[2].split()
            works_there = (entry / "cwd").readlink().is_relative_to(temporary)
            if state != "Z" and (int(fields[2]) == session or works_there):
                found.append(f"{entry.name} {(entry / 'cmdline').read_text()}")
        except OSError:
            continue  # it has ended meanwhile
    return found


def test_the_story_is_20_categories_with_a_channel_each_and_15_events() -> None:
    assert len({source.category for source in SOURCES}) == len({source.channel for source in SOURCES}) == 20
    told = [scene.source.category for scene in scenes()]
    assert {told.count(source.category) for source in SOURCES} == {EACH} == {15}
    assert len({*told[:50]}) > 10, "events of the categories come mixed"


def test_the_figures_are_as_promised_whatever_the_environment_says(temporary: Path) -> None:
    Path(".env").write_text(
        "DISPATCHER_REDIS_URL=redis://nowhere.invalid:1/0\nDISPATCHER_SENDERS=0\n", encoding="utf-8"
    )
    result = run("demo", "--json", TMPDIR=str(temporary), **NONSENSE)
    assert (result.code, result.err) == (0, "")
    figures = json.loads(result.out)
    categories = figures.pop("categories")
    assert figures == {"enqueued": 300, "sent": 100, "dropped": 200, "slack_received": 100}
    assert len(categories) == 20
    assert all(each.keys() == {"sent", "dropped"} and sum(each.values()) == 15 for each in categories.values())
    assert max(each["sent"] for each in categories.values()) <= 10
    assert sum(each["sent"] for each in categories.values()) == 100
    assert list(temporary.iterdir()) == []


def test_the_demo_prints_its_progress_and_its_totals() -> None:
    result = run("demo")
    assert (result.code, result.err) == (0, "")
    shown = result.out.splitlines()
    assert shown[0].startswith("300 events of 20 categories")
    assert any("on the way" in line for line in shown)
    assert all(sum(source.category in line and source.channel in line for line in shown) == 1 for source in SOURCES)
    assert "300 enqueued = 100 sent + 200 dropped; Slack received 100." in shown
    assert shown[-1] == "The books balance: 300 received = 100 sent + 200 dropped."
    reasons = next(line for line in shown if line.startswith("Dropped by the limit of their category"))
    assert sum(int(part.rstrip(".").rpartition(" ")[2]) for part in reasons.split(";")) == 200
    assert "\x1b" not in result.out


def test_on_a_terminal_a_table_fills_and_stays() -> None:
    with terminal() as (stdout, written):
        demo = run_on(Streams(stdout=stdout), "demo", TERM="xterm", COLUMNS="80", LINES="24")
        drawn = written()
    assert demo.code == 0
    assert drawn.count("checkout.errors") > 3, "drawn again and again, how often depends on the machine"
    assert "\x1b[32m" in drawn
    end = drawn[drawn.rindex("Category") :]
    assert all(source.category in end for source in SOURCES)
    assert "The books balance: 300 received = 100 sent + 200 dropped." in end
    seen = Emulator(80, 24)
    seen.feed(drawn)
    left = "\n".join(seen.everything)
    assert left.startswith("300 events of 20 categories")
    assert [left.count(word) for word in ("Category", "checkout.errors", "on the way", " more")] == [1, 1, 0, 0]


class Writes(io.StringIO):
    """A terminal that is looked at after every write."""

    def __init__(self, seen: Emulator) -> None:
        super().__init__()
        self.seen = seen
        self.frames: list[list[str]] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.seen.feed(text)
        if _CODE_OF_DRAWING in text:
            self.frames.append([line.rstrip() for line in self.seen.screen])
        return len(text)


_CODE_OF_DRAWING = "\x1b[2K"


def moment(each: int) -> Moment:
    """So many of each category are dropped; of signups.odd all."""
    counts = {source.category: each for source in SOURCES} | {"signups.odd": EACH}
    totals = {"dropped": sum(counts.values()), "received": sum(counts.values())}
    totals |= {f"dropped {category}": count for category, count in counts.items()}
    return Moment(Snapshot(0, 1, 0, 0, 0, 0, 0, {}, {}, 0, totals, {}, {}, None), {})


LOOKS = (0, 1, EACH // 2, EACH - 1)


@pytest.mark.parametrize(("columns", "rows", "is_whole"), [(80, 24, False), (80, 40, True), (60, 12, False)])
def test_the_table_fits_any_screen_and_only_the_last_one_stays(
    columns: int, rows: int, monkeypatch: pytest.MonkeyPatch, *, is_whole: bool
) -> None:
    writes = Writes(Emulator(columns, rows))
    for name, value in (("COLUMNS", str(columns)), ("LINES", str(rows)), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", writes)
    with live_view() as view:
        for each in LOOKS:
            view.show(moment(each))
        view.end(summary(moment(EACH), Counter()))
    assert len(writes.frames) == len(LOOKS), "every look at the books, and the end"
    for frame in writes.frames[:-1]:
        assert any(line.startswith("Total") for line in frame)
        assert any("on the way" in line for line in frame)
        assert any(line.startswith("signups.odd") for line in frame), "the busiest"
        assert any(line.startswith("and ") for line in frame) is not is_whole
        assert "..." not in {line.strip() for line in frame}
    assert any(line.startswith("Total") for line in writes.frames[-1]), "there was no moment without a table"
    left = "\n".join(writes.seen.everything)
    assert [left.count(word) for word in ("Category", "on the way", " more\n")] == [1, 0, 0]
    assert all(left.count(source.category) == 1 for source in SOURCES)


def test_an_interrupted_demo_leaves_nothing_behind(temporary: Path) -> None:
    with started("demo", TMPDIR=str(temporary)) as process:
        assert process.stdout is not None
        assert "300 events" in process.stdout.readline()
        assert len(processes_of(process.pid, temporary)) >= 5, "the demo, two workers, the server and its guard"
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGINT)  # the second one does not disturb the cleaning up
        result = ended(process)
    assert result.code == 130
    assert result.err == "dispatcher: error: interrupted; nothing is left running, nothing is kept\n"
    assert processes_of(process.pid, temporary) == []
    assert list(temporary.iterdir()) == []


def test_a_killed_demo_leaves_no_process_behind(temporary: Path) -> None:
    with started("demo", TMPDIR=str(temporary)) as process:
        assert process.stdout is not None
        assert "300 events" in process.stdout.readline()
        process.kill()
        process.wait()
        until(lambda: not processes_of(process.pid, temporary), "the workers and the server to end")
