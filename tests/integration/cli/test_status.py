"""``dispatcher status``: the figures, the check of the books, and what a terminal gets to see."""

from __future__ import annotations

import io
import json
import re
import signal
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from dispatcher.app.documents.facts import Status, natural
from dispatcher.app.documents.instants import clock, span
from dispatcher.app.documents.recent import recent_of
from dispatcher.app.documents.status import status_document as document
from dispatcher.app.fleet import WorkerEntry, fleet
from dispatcher.cli.drawing import Look, painted
from dispatcher.cli.status.view import Rows, tables
from dispatcher.cli.status.watch import Page
from dispatcher.core.limits import Limit
from dispatcher.core.quiet import Quiet, QuietThen, Span, Times
from dispatcher.core.units import US
from dispatcher.limiter import Usage
from dispatcher.producer.blocking import Producer
from dispatcher.server.keys import Keys
from dispatcher.settings.redaction import redacted_url
from dispatcher.settings.zones import zone_of
from dispatcher.slack.taxonomy import row_for
from dispatcher.store.counts import Counts
from dispatcher.store.snapshot import Line, Pause, PausedByHand, Snapshot, TallyStatus
from tests.support.commands import Streams, run, started_on
from tests.support.processes import PATIENCE_S, Command, until
from tests.support.screens import Screen
from tests.support.servers import Database, RedisServer

KEYS = Keys("dispatcher")
COUNTS = {"sent": 0, "dropped": 0, "digested": 0, "dead": 0, "duplicate": 0}


def lately(received: int, sent: int, dropped: dict[str, int]) -> dict[str, object]:
    return {"received": received, "sent": sent, "dropped": dropped, "digested": {}, "dead": {}}


@pytest.mark.usefixtures("tmp_path")
def test_where_nothing_has_run_it_says_so_and_makes_nothing() -> None:
    result = run("status")
    assert (result.code, result.out) == (78, "")
    assert "nothing has run here: no embedded server has ever run in .dispatcher" in result.err
    assert not Path(".dispatcher").exists()
    Path(".dispatcher").mkdir()
    assert run("status").code == 78
    assert list(Path(".dispatcher").iterdir()) == []


def test_the_figures_as_json_for_people_and_checked(redis: Database, redis_url: str, tmp_path: Path) -> None:
    Path("limits.yaml").write_text(
        "global: {limits: [4/1h]}\n"
        "defaults: {limits: [3/1h]}\n"
        "categories: {errors: {limits: [2/30m]}, quiet: {limits: [1/1s, 3/1m]}}\n",
        encoding="utf-8",
    )
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_LIMITS_FILE": "limits.yaml", "DISPATCHER_SINK": "console"}
    events = [{"category": "errors" if n < 3 else "deploys", "text": str(n)} for n in range(6)]
    producer = Producer(redis)
    producer.send_many(events)
    assert run("worker", "--burst", **env).code == 0
    producer.send("errors", "one too many")
    before = time.time()

    with Command("worker", env={**env, "DISPATCHER_QUEUE": "notifications"}, cwd=tmp_path) as worker:
        worker.await_line("event.settled")
        result = run("status", "--json", **env)
        assert (result.code, result.err) == (0, "")
        status = json.loads(result.out)
        (listed,) = status.pop("workers")
        assert (listed["name"], listed["pid"]) == (worker.named("worker.started")[0]["worker"], worker.pid)
        assert before - 5 < listed["last_heartbeat"] < time.time() + 5
        assert listed.keys() == {"name", "host", "pid", "last_heartbeat", "state", "alive"}
        assert listed["alive"] is True
        assert before - 5 < status.pop("now") < time.time() + 5
        rates = status.pop("rates")
        assert 60 <= rates["over_s"] < 120
        assert rates["received"] == pytest.approx(7 / rates["over_s"])
        assert rates["sent"] == pytest.approx(4 / rates["over_s"])

    assert 1700 < status["categories"]["errors"]["limits"][0].pop("next_free_s") <= 1800
    assert 3500 < status["global"]["limits"][0].pop("next_free_s") <= 3600
    rest = {"scope": "category:deploys", "max": 3, "window_s": 3600, "kind": "rolling", "used": 2, "next_free_s": 0.0}
    quiet = {"scope": "category:quiet", "kind": "rolling", "used": 0, "next_free_s": 0.0}
    assert status["limits"].pop("by") not in {None, listed["name"]}, "it was an earlier worker"
    file = str(tmp_path / "limits.yaml")
    assert status == {
        "limits": {"version": 1, "file": file, "same_as_file": True, "from": file},
        "queue": {"waiting": 0, "in_flight": 0, "parked": 0},
        "dead_letters": 0,
        "totals": {"enqueued": 7, "received": 7, **COUNTS, "sent": 4, "dropped": 3, "replayed": 0, "notices": 0},
        "categories": {
            "errors": {
                **COUNTS,
                "sent": 2,
                "dropped": 2,
                "parked": 0,
                "last_30m": lately(4, 2, {"limit:category": 1, "limit:global": 1}),
                "limits": [{"scope": "category:errors", "max": 2, "window_s": 1800, "kind": "rolling", "used": 2}],
            },
            "quiet": {
                **COUNTS,
                "parked": 0,
                "last_30m": lately(0, 0, {}),
                "limits": [{**quiet, "max": 1, "window_s": 1}, {**quiet, "max": 3, "window_s": 60}],
            },
            "deploys": {
                **COUNTS,
                "sent": 2,
                "dropped": 1,
                "parked": 0,
                "last_30m": lately(3, 2, {"limit:global": 1}),
                "limits": [rest],
            },
        },
        "last_30m": lately(7, 4, {"limit:category": 1, "limit:global": 2}),
        "global": {"limits": [{"scope": "global", "max": 4, "window_s": 3600, "kind": "rolling", "used": 4}]},
        "lines": [],
        "in_other_lines": {"deferred": 0, "for_channels": 0},
        "suppressed": [],
        "timers": {"waiting": 0, "next": None},
        "scheduled": {"waiting": 0, "next": None},
        "cooldowns": [],
        "paused": None,
        "writes_refused": None,
        "paused_categories": [],
        "muted": [],
        "quiet": [],
        "silences": [],
    }

    shown = run("status", **env)
    assert shown.code == 0
    assert (
        shown.err
        == f"dispatcher: namespace dispatcher on {redacted_url(redis_url)}, limits version 1, as limits.yaml says\n"
    )
    assert "7 enqueued, 4 sent, 3 dropped, 0 dead" in shown.out
    assert "2/2 in 30m" in shown.out
    assert "\x1b" not in shown.out

    check = run("status", "--check", **env)
    assert (check.code, check.out) == (0, "the books balance: 7 received = 4 sent + 3 dropped\n")
    redis.hincrby(KEYS.totals, "received", 1)
    check = run("status", "--check", **env)
    assert (check.code, check.out) == (
        1,
        "the books do not balance: received is 8, but outcomes + parked + in flight is 7\n",
    )
    assert json.loads(run("status", "--check", "--json", **env).out)["balanced"] is False

    redis.set(KEYS.layout, "999")
    refused = run("status", **env)
    assert refused.code == 78
    assert "key layout '999'" in refused.err


@pytest.mark.usefixtures("tmp_path")
def test_an_embedded_server_that_ran_before_is_started_for_the_look() -> None:
    assert run("worker", "--burst", DISPATCHER_SINK="console").code == 0
    result = run("status", "--check")
    assert (result.code, result.out) == (0, "the books balance: 0 received = 0 sent\n")


def drawn(status: Status, rows: Rows | None = None, width: int = 160) -> str:
    look = Look(is_ascii=False, is_styled=False)
    return "".join(f"{painted(line, look)}\n" for table in tables(status, rows) for line in table.lines(width))


def snapshot_of(**facts: object) -> Snapshot:
    nothing: dict[str, object] = {
        **dict.fromkeys(("waiting", "events", "leased", "requeued", "parked", "timers", "dead_letters"), 0),
        **{name: {} for name in ("lines", "deferred", "totals", "leases", "cooldowns")},
        "pause": None,
        "now_us": 1_000 * US,
    }
    return Snapshot(**{**nothing, **facts})  # type: ignore[arg-type]  # fields by name


def test_foreign_text_is_shown_as_it_is_and_does_nothing() -> None:
    facts = snapshot_of(
        lines={
            "channel:#[red]\x1b[2Jops": Line(3, None),
            "channel:#late": Line(1, 1_090 * US),
            "paused:orders": Line(2, None),
        },
        cooldowns={"#late": 1_075 * US},
        parked=6,
        totals={"parked": 6, "parked [bold]x": 6},
    )
    shown = drawn(Status(facts, {"[bold]x": []}, [], [WorkerEntry("w\x1b1", "[b]host", 7, "idle", 998.0)]))
    assert "\x1b" not in shown
    assert "#[red]\\x1b[2Jops" in shown
    assert "[bold]x" in shown
    assert "[b]host" in shown
    assert "after the one in flight" in shown
    assert "orders (paused)" in shown
    assert "when it is resumed" in shown
    assert "in 1m 30s" in shown
    assert "1m 15s" in shown
    assert "2.0s ago" in shown


@pytest.mark.parametrize(
    "stopped",
    [
        {"pause": Pause("http_503", "", 900 * US, 995 * US, "outage")},
        {"paused": {"*": PausedByHand("ops@here", 900 * US)}},
    ],
    ids=["outage", "by hand"],
)
def test_while_nothing_is_posted_no_line_is_said_to_go_now_and_what_was_paused_needs_a_resume(
    stopped: dict[str, object],
) -> None:
    lines = {
        "category:deploys": Line(12, 1_090 * US, "category:deploys"),
        "category:errors": Line(2, 990 * US, "global"),
        "channel:#ops": Line(1, 990 * US),
        "paused:orders": Line(3, None),
    }
    status = Status(snapshot_of(lines=lines, deferred={"deploys": 12, "errors": 2}, **stopped), {}, [], [])
    rows = [" ".join(line.split()) for line in drawn(status).splitlines()]
    for row in (
        "deploys 12 in 1m 30s category:deploys",
        "errors 2 when posting goes on global",
        "#ops 1 when posting goes on",
        "orders (paused) 3 when it is resumed",
    ):
        assert row in rows


def test_deferred_events_are_shown_with_the_scope_they_wait_for() -> None:
    lines = {
        "category:deploys": Line(12, 1_090 * US, "category:deploys"),
        "label:errors:host=db1": Line(2, None, "global"),
        "channel:#ops": Line(1, None),
    }
    status = Status(snapshot_of(lines=lines, deferred={"deploys": 12, "errors": 2}), {}, [], [])
    rows = [line.split() for line in drawn(status).splitlines()]
    assert ["deploys", "12", "in", "1m", "30s", "category:deploys"] in rows
    assert ["errors:host=db1", "2", "now", "global"] in rows
    assert document(status)["lines"][0] == {
        "scope": "category:deploys",
        "waiting": 12,
        "next": 1_090,
        "waits_for": "category:deploys",
    }


def test_what_was_suppressed_and_not_told_is_said_by_category_and_since_when() -> None:
    tallies = {
        "repeat:al:x:00c5b74ac81b4d37": TallyStatus(2, 940 * US, "timer"),
        "repeat:al:x:11c5b74ac81b4d37+7": TallyStatus(3, 930 * US, "timer"),
        "repeat:al:x:22c5b74ac81b4d37": TallyStatus(0, 0, "timer"),
        "digest:al:x": TallyStatus(4, 990 * US, "timer"),
        "silence:3": TallyStatus(1, 900 * US, "timer"),
    }
    status = Status(snapshot_of(tallies=tallies), {}, [], [])
    shown = [f"al:x: 5 since {clock(930)} (repeat)", f"al:x: 4 since {clock(990)} (digest)"]
    assert f"Suppressed  {', '.join(shown)}, silence 3: 1 since {clock(900)}\n" in drawn(status)
    assert document(status)["suppressed"] == [
        {"category": "al:x", "silence": None, "told_by": "repeat", "count": 5, "since": 930.0},
        {"category": "al:x", "silence": None, "told_by": "digest", "count": 4, "since": 990.0},
        {"category": None, "silence": "3", "told_by": "silence", "count": 1, "since": 900.0},
    ]
    later = snapshot_of(tallies=tallies, now_us=2 * 86_400 * US)
    assert f"silence 3: 1 since 1970-01-01 {clock(900)}" in drawn(replace(status, snapshot=later))


def test_of_many_categories_with_suppressed_events_those_with_the_most_are_named() -> None:
    tallies = {f"digest:cat{n}": TallyStatus(n, 990 * US, "timer") for n in range(1, 9)}
    facts = snapshot_of(tallies=tallies, all_tallies=8)
    said = drawn(Status(facts, {}, [], []))
    assert re.findall("cat[0-9]", said) == ["cat8", "cat7", "cat6", "cat5", "cat4"]
    assert f"cat4: 4 since {clock(990)} (digest) and 3 more\n" in said
    some = replace(facts, has_all_tallies=False, all_tallies=3_000, tallies={"digest:cat1": tallies["digest:cat1"]})
    assert f"cat1: 1 since {clock(990)} (digest) and others that were not looked at\n" in drawn(
        Status(some, {}, [], [])
    )


def test_quiet_hours_that_hold_are_shown_and_what_waits_for_their_end() -> None:
    zone = zone_of("Europe/Berlin")
    nights = Quiet("nights", (Times(0, 60),), "Europe/Berlin", zone, QuietThen.DEFER, categories=("chatter", "deploys"))
    whole = replace(nights, name="whole", categories=None, then=QuietThen.DROP)
    lines = {"quiet:category:deploys": Line(12, 1_090 * US, "quiet:nights")}
    span = Span(900 * US, 1_090 * US)
    snapshot = snapshot_of(lines=lines, deferred={"deploys": 12})
    status = Status(snapshot, {}, [], [], quiet=[(nights, span), (whole, span)])
    shown = [" ".join(line.split()) for line in drawn(status).splitlines()]
    assert f"Quiet nights until {clock(1_090)} (in 1m 30s), defer: chatter, deploys" in shown
    assert f"Quiet whole until {clock(1_090)} (in 1m 30s), drop: all categories" in shown
    assert "deploys (quiet) 12 in 1m 30s quiet:nights" in shown
    first, second = document(status)["quiet"]
    assert first == {
        "name": "nights", "since": 900, "until": 1_090, "then": "defer", "categories": ["chatter", "deploys"],
    }  # fmt: skip
    assert second["categories"] is None


def test_a_pause_is_shown_with_its_reason_and_its_next_try() -> None:
    told = row_for("missing_scope")
    pause = Pause("missing_scope", f"{told.words} (needed: chat:\x07write)", 940 * US, 1_030 * US, "operator")
    shown = drawn(Status(snapshot_of(pause=pause), {}, [Usage(Limit.parse("10/1m"), 10, 2 * US)], []))
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    assert "Posting paused for 1m 0s by missing_scope: the token lacks a scope (needed: chat:\\x07write)" in rows
    assert f"To do {told.remedy}" in rows
    assert "Next try in 30s" in rows
    assert "none is running" in shown
    assert "██████████  10/10 in 1m  in 2.0s" in shown


def test_status_counts_events_on_timers_and_shows_the_next_instant() -> None:
    facts = snapshot_of(parked=2, timers=2, next_timer_us=1_004 * US, lines={"channel:#ops": Line(3, 1_090 * US)})
    status = Status(facts, {}, [], [])
    assert "2 parked, the next in 4.0s" in drawn(status)
    shown = document(status)
    assert shown["now"] == 1_000
    assert shown["timers"] == {"waiting": 2, "next": 1_004}
    assert shown["lines"] == [{"scope": "channel:#ops", "waiting": 3, "next": 1_090}]


def test_room_that_parked_events_hold_is_no_matter_of_hours() -> None:
    held = Usage(Limit.parse("10/1d fixed"), 10, 86_000 * US, held=10)
    assert "10/10 in 1d fixed  held" in drawn(Status(snapshot_of(), {"errors": [held]}, [], []))
    partly = Usage(Limit.parse("10/1d fixed"), 10, 7_200 * US, held=9)
    assert "10/10 in 1d fixed  in 2h" in drawn(Status(snapshot_of(), {"errors": [partly]}, [], []))


def test_the_room_of_a_category_names_the_wider_limit_that_keeps_it_waiting_longest() -> None:
    own, all_ = Limit.parse("10/30m"), Limit.parse("100/30m")
    free, full = Usage(own, 3, 0), Usage(own, 10, 60 * US)
    together, shared = Usage(all_, 95, 0), Usage(Limit.parse("95/30m"), 95, 1_440 * US)
    status = Status(
        snapshot_of(),
        {"free": [free], "full": [full], "kept": [free], "used": [free], "none": []},
        [together],
        [],
        shares={"kept": Usage(Limit.parse("5/30m"), 2, 0), "used": Usage(Limit.parse("5/30m"), 5, 30 * US)},
        shared=shared,
    )
    lines = [" ".join(line.split()) for line in drawn(status).splitlines() if line.strip()]
    rows = {line.split()[0]: line for line in lines}
    assert rows["free"].endswith("3/10 in 30m in 24m 0s (shared)")
    assert rows["full"].endswith("10/10 in 30m in 24m 0s (shared)")
    assert "(" not in rows["kept"]
    assert rows["used"].endswith("3/10 in 30m in 30s (shared)")
    assert rows["none"].endswith("none in 24m 0s (shared)")
    everybody = Status(snapshot_of(), {"full": [full]}, [Usage(all_, 100, 30 * US)], [])
    assert "10/10 in 30m in 1m 0s all together" in " ".join(drawn(everybody).split())
    with_room = " ".join(drawn(replace(everybody, categories={"free": [free]})).split())
    assert "3/10 in 30m in 30s (all)" in with_room


def test_categories_stand_in_natural_order_and_one_of_anything_is_one() -> None:
    assert sorted(["svc-10", "svc-2", "svc", "2nd", "10th", "svc-1"], key=natural) == [
        "2nd", "10th", "svc", "svc-1", "svc-2", "svc-10",
    ]  # fmt: skip
    assert "1 notice\n" in drawn(Status(snapshot_of(totals={"notices": 1}), {}, [], []))
    assert "2 notices\n" in drawn(Status(snapshot_of(totals={"notices": 2}), {}, [], []))
    assert "1 duplicate\n" in drawn(Status(snapshot_of(totals={"duplicate": 1}), {}, [], []))
    assert "2 duplicates\n" in drawn(Status(snapshot_of(totals={"duplicate": 2}), {}, [], []))


def test_categories_are_chosen_by_a_pattern_and_sorted_by_a_count(redis: Database, redis_url: str) -> None:
    totals = {"dropped svc-1": 1, "dropped svc-10": 9, "dropped svc-2": 5, "dropped web": 7}
    redis.hset(KEYS.totals, mapping={**totals, "dropped": 22, "received": 22})
    shown = run("status", "--json", "--category", "svc-*", "--sort", "dropped", DISPATCHER_REDIS_URL=redis_url)
    assert list(json.loads(shown.out)["categories"]) == ["svc-10", "svc-2", "svc-1"]


def test_a_low_screen_shows_what_is_fullest_and_says_how_much_it_leaves_out() -> None:
    limit = Limit.parse("10/1m")
    categories = {f"cat{n}": [Usage(limit, n, 0)] for n in (1, 9, 3, 7)}
    lines = {f"channel:#c{n}": Line(n, None) for n in range(1, 4)}
    workers = [WorkerEntry(f"w{n}", "h", n, "idle", 998.0, alive=n != 3) for n in range(1, 4)]
    shown = drawn(Status(snapshot_of(lines=lines), categories, [], workers), Rows(categories=3, others=2))
    rows = [line.split()[0] for line in shown.splitlines() if line and line[0] not in " ─"]
    assert " ".join(rows) == "Queue Events Category cat9 cat7 all 2 Channel #c3 and Worker w3 and"
    assert shown.count("and 2 more") == 2
    assert "\n2 more categories: choose with --category GLOB or --sort\n" in shown


@pytest.mark.parametrize(("columns", "rows"), [(40, 24), (40, 40), (80, 24), (80, 10), (160, 50)])
def test_a_watched_screen_of_any_size_says_what_it_leaves_out(columns: int, rows: int) -> None:
    """Also with names as long as they may be, and all tables at once."""
    names = [f"{'long-name' * 7}", *(f"svc-{n}" for n in range(99))]
    full = Usage(Limit.parse("3/30m"), 3, 1_532 * US)
    facts = snapshot_of(
        lines={
            **{f"category:{name}": Line(7, 2_000 * US, f"category:{name}") for name in names[:15]},
            **{f"channel:#c{n}": Line(2, 2_000 * US) for n in range(9)},
        },
        tallies={f"digest:{name}": TallyStatus(9, 999 * US, "timer") for name in names[:15]},
        parked=138,
        timers=15,
    )
    workers = [WorkerEntry(f"host.{n}.abcdef", "host", n, "idle", 998.0, alive=n > 1) for n in range(1, 9)]
    status = Status(facts, {name: [full] for name in names}, [full], workers)
    screen = io.StringIO()
    Console(file=screen, width=columns, height=rows).print(Page("namespace x", status, 1_000.0))
    shown = screen.getvalue().splitlines()
    assert len(shown) <= rows
    assert max(map(len, shown)) <= columns
    said = " ".join(shown)
    assert "Ctrl-C ends it" in said
    if rows < 20:
        assert re.fullmatch("and [0-9]+ more lines on a larger screen", shown[-1])
        return
    assert re.search("[0-9]+ more categories: choose with", said)
    for heading, held in (("Deferred ", "105 deferred"), ("Channel ", "18 for channels"), ("Worker ", "8 workers")):
        places = [number for number, line in enumerate(shown) if line.startswith(heading)]
        if places:
            below = [*shown[places[0] :], ""]
            assert re.fullmatch("and [0-9]+ more in 'dispatcher status'", below[below.index("") - 1])
        else:
            assert held in said


@pytest.mark.parametrize(("columns", "rows", "categories"), [(60, 17, 0), (60, 20, 1), (80, 24, 2), (80, 32, 10)])
def test_a_watched_screen_has_all_together_however_much_there_is_to_say_above_it(
    columns: int, rows: int, categories: int
) -> None:
    limits = [Usage(Limit.parse(limit), 60, 30 * US) for limit in ("60/1m", "300/30m")]
    names = [f"svc-{n}" for n in range(99)]
    facts = snapshot_of(
        pause=Pause("invalid_auth", "the token is not valid", 990 * US, 1_090 * US, "operator"),
        paused={
            f"svc-{n}": PausedByHand("ann@host", 900 * US, "the release goes on until the evening") for n in (1, 2)
        },
        tallies={f"digest:{name}": TallyStatus(9, 999 * US, "timer") for name in names[:15]},
        totals={"sent": 99, "dropped svc-1 limit:category": 5_012, "dead svc-2 rejected": 3},
        parked=138,
        timers=35,
        dead_letters=3,
    )
    status = Status(facts, dict.fromkeys(names, limits[:1]), limits, [], shared=limits[0])
    screen = io.StringIO()
    headline = "namespace dispatcher on redis://127.0.0.1:6379/0, limits /srv/dispatcher/config/limits.yaml, version 7"
    Console(file=screen, width=columns, height=rows).print(Page(headline, status, 1_000.0))
    shown = screen.getvalue().splitlines()
    assert (len(shown) <= rows, max(map(len, shown)) <= columns) == (True, True)
    assert [line.split("  ")[0] for line in shown if "60/60 in 1m" in line][-2:] == ["all together", "shared"]
    assert sum(line.startswith("svc-") for line in shown) == categories
    assert "Posting" in " ".join(shown)


# Who is dropped now, and why


STORM_IN_80 = "Category Sent Dropped Dead Suppressed in 30m Limit Room"
STORM_IN_60 = "Category Suppressed in 30m Limit Room"


@pytest.mark.parametrize(
    ("width", "sorted_by", "heading", "left_out"),
    [
        (120, None, "Category Sent Dropped Digested Dead Parked Suppressed in 30m Limit Room", ""),
        (80, None, STORM_IN_80, "Digested, Parked: on a wider screen"),
        (
            80,
            "parked",
            STORM_IN_80.replace("Dropped ", "").replace(" Suppressed", " Parked Suppressed"),
            "Dropped, Digested: on a wider screen",
        ),
        (60, None, STORM_IN_60, "Sent, Dropped, Digested, Dead, Parked: on a wider screen"),
        (60, "dead", "Category Dead Limit Room", "Sent, Dropped, Digested, Parked, Suppressed: on a wider screen"),
        (60, "suppressed", STORM_IN_60, "Sent, Dropped, Digested, Dead, Parked: on a wider screen"),
    ],
)
def test_a_storm_is_split_by_cause_and_says_which_totals_have_no_room(
    width: int, sorted_by: str | None, heading: str, left_out: str
) -> None:
    minute = Counts(
        {
            "received": 35,
            "sent errors": 1,
            "dropped errors limit:category": 12,
            "dropped errors limit:global": 3,
            "dropped deploys limit:label": 1,
            "dropped deploys cancelled": 2,
            "dropped deploys repeat": 3,
            "digested reports limit:category": 4,
            "dead audit silenced": 5,
            "dead audit rejected": 1,
            "dead audit overflow": 1,
        }
    )
    names = ("errors", "deploys", "reports", "audit")
    limit = Limit.parse("10/30m")
    used = {name: [Usage(limit, 10, 1_500 * US)] for name in names}
    facts = snapshot_of(totals={**minute.fields, "dropped errors limit:category": 5_012, "parked errors": 1})
    status = Status(facts, used, [Usage(limit, 3, 0)], [], recent=recent_of([minute], facts.now_us))
    shown = drawn(status.of(None, sorted_by), width=width)
    assert max(map(len, shown.splitlines())) <= width
    rows = {line.split()[0]: " ".join(line.split()) for line in shown.splitlines() if line.strip()}
    assert rows["Category"] == heading
    assert " ".join(shown.split()).endswith(left_out)
    has_causes, cut = "Suppressed" in heading, 17 if width < 120 else None
    for name, causes in (
        ("errors", "15: 12 own, 3 global"),
        ("deploys", "4: 3 repeated, 1 own"),
        ("reports", "4 own"),
        ("audit", "6: 5 silenced, 1 overflow"),
        ("all", "29: 17 own, 5 silenced, 3 global"),
    ):
        assert (causes[:cut] in rows[name]) == has_causes
    assert "10/10 in 30m in 25m 0s" in rows["errors"]


def test_the_rates_are_those_of_the_running_minute_and_the_one_before() -> None:
    minutes = [Counts({"received": 90, "sent": 1}), Counts({"received": 60, "dropped": 200}), Counts({"received": 999})]
    status = Status(snapshot_of(), {}, [], [], recent=recent_of(minutes, 1_000 * US))  # 40 s of the minute have passed
    assert "Rate     1.5/s in, 0.01/s sent, 2.0/s dropped, over 1m 40s\n" in drawn(status)
    assert document(status)["rates"]["received"] == 1.5
    assert "Rate" not in drawn(replace(status, recent=recent_of([], 1_000 * US)))


def test_without_an_order_those_stand_first_of_which_something_was_suppressed_last() -> None:
    names = ("first", "file", "errors", "deploys", "reports", "old")
    minutes = [
        Counts({"dropped errors silenced": 1, "sent file": 9, "dead file rejected": 9}),
        Counts({"dropped deploys limit:global": 7}),  # the minute before is now, too: else rows would jump
        Counts({"digested first limit:category": 2, "dropped errors silenced": 1}),
        Counts({}),
        Counts({"dead reports overflow": 1, "dead first limit:category": 6}),
    ]
    status = Status(snapshot_of(), dict.fromkeys(names, ()), [], [], recent=recent_of(minutes, 1_000 * US))
    assert [*status.of(None, None).categories] == ["errors", "deploys", "first", "reports", "file", "old"]
    assert [*status.of(None, "suppressed").categories][:4] == ["first", "deploys", "errors", "reports"]
    idle = replace(status, recent=recent_of([], 1_000 * US))
    assert tuple(idle.of(None, None).categories) == names
    assert "Suppressed" not in drawn(idle)


def test_a_low_screen_keeps_an_order_that_was_asked_for_and_else_who_is_suppressed_now() -> None:
    categories = {f"cat{n}": [Usage(Limit.parse("10/1m"), n, 0)] for n in range(9)}
    minute = Counts({"dropped cat3 limit:global": 1, "dropped cat1 silenced": 9, "sent cat1": 5, "sent cat2": 7})
    status = Status(snapshot_of(totals=minute.fields), categories, [], [], recent=recent_of([minute], 1_000 * US))

    def rows(count: str | None) -> list[str]:
        shown = drawn(status.of(None, count), Rows(categories=3, others=2))
        assert "7 more categories" in shown
        return re.findall("^cat[0-9]", shown, re.MULTILINE)

    assert (rows("sent"), rows(None)) == (["cat2", "cat1"], ["cat1", "cat3"])


def test_events_in_lines_that_were_not_looked_at_are_counted() -> None:
    lines = {"category:deploys": Line(12, 1_090 * US, "category:deploys"), "channel:#ops": Line(3, 1_090 * US)}
    facts = snapshot_of(
        lines=lines, deferred={"deploys": 512}, parked_with_digests=1_000, timers=8, has_all_lines=False
    )
    status = Status(facts, {}, [], [])
    rows = [line.strip() for line in drawn(status).splitlines()]
    assert {"and 500 events in other lines", "and 477 events in other lines"} <= set(rows)
    alone = Status(replace(facts, deferred={"deploys": 13}), {}, [], [])
    assert "and 1 event in other lines" in drawn(alone)
    assert document(status)["in_other_lines"] == {"deferred": 500, "for_channels": 477}


@pytest.mark.parametrize("width", [160, 90, 60, 40])
def test_tables_fit_the_screen_and_keep_each_name_on_its_line(width: int) -> None:
    names = ("errors", "deploys", "shop.checkout-errors.of-the-night", "shop.checkout-errors.of-the-day")
    full = Usage(Limit.parse("3/1m"), 3, 52 * US)
    workers = [WorkerEntry(f"{'host-in-a-rack' * 4}.1234.abcdef", "host-in-a-rack" * 4, 1234, "busy", 998.0)]
    shown = drawn(Status(snapshot_of(), {name: [full] for name in names}, [full], workers), width=width).splitlines()
    assert max(map(len, shown)) <= width
    assert len([line for line in shown if "3/3 in 1m" in line]) == len(names) + 1
    assert len([line for line in shown if line.startswith("host-in-a-rack")]) == 1


def test_a_worker_is_idle_or_busy_in_the_words_of_people_and_as_rq_has_it_in_json() -> None:
    workers = [WorkerEntry(f"w{n}", "h", n, state, 991.0) for n, state in enumerate(("started", "idle", "busy"))]
    status = Status(snapshot_of(), {}, [], workers)
    table = drawn(status).partition("Worker ")[2].splitlines()[2:]
    assert [row.split()[3] for row in table] == ["idle", "idle", "busy"]
    assert [each["state"] for each in document(status)["workers"]] == ["started", "idle", "busy"]


def test_an_instant_names_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        for place, said in (("UTC0", "23:46:40 UTC"), ("CET-1", "00:46:40 CET"), ("<+03>-3", "02:46:40 +03")):
            monkeypatch.setenv("TZ", place)
            time.tzset()
            assert clock(1_000_000_000 - 7_200) == said
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_worker_of_ours_without_a_lease_is_silent() -> None:
    def entry(name: str, at: int) -> dict[str, str]:
        beat = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"name": name, "host": "h", "pid": "7", "state": "idle", "last_heartbeat": beat}

    facts = snapshot_of(leases={"h.7.held": 1_001 * US, "h.7.ended": 999 * US})
    beats = {"h.7.held": 700, "h.7.ended": 980, "h.7.none": 980, "h.7.new": 998, "h.7.ahead": 90_000, "rq": 700}
    entries = [entry(name, at) for name, at in beats.items()]
    workers = fleet(entries, facts)
    assert {each.name: each.alive for each in workers} == {
        "h.7.held": True,
        "h.7.ended": False,
        "h.7.none": False,
        "h.7.new": True,
        "h.7.ahead": False,
        "rq": True,
    }
    shown = drawn(Status(facts, {}, [], workers))
    assert "h.7.ended  h     7    silent  20s ago" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((), "needs a terminal that can redraw"), (("--json",), "leave out --json"), (("--check",), "and --check")],
)
def test_watching_is_for_terminals(arguments: tuple[str, ...], said: str) -> None:
    result = run("status", "--watch", *arguments)
    assert (result.code, result.out) == (2, "")
    assert said in result.err


def test_watching_goes_on_while_the_server_goes_and_comes_back_and_leaves_the_last_figures(
    own_server: RedisServer,
) -> None:
    with own_server.client() as client:
        Producer(client).send("errors", "x")
    env = {"DISPATCHER_REDIS_URL": own_server.url, "TERM": "xterm"}
    with Screen(columns=80, rows=20) as screen:
        with started_on(Streams(stdout=screen.stream), "status", "--watch", **env) as watch:
            until(lambda: "1 waiting" in screen.latest(), "the first figures")
            own_server.kill()
            until(lambda: "server away since" in screen.latest(), "that the server is away")
            assert "1 waiting" in screen.latest()
            own_server.start()
            with own_server.client() as client:
                Producer(client).send("errors", "y")
            until(lambda: "2 waiting" in screen.latest(), "the figures of the server that is back")
            assert "away" not in screen.latest()
            watch.send_signal(signal.SIGINT)
            _, said = watch.communicate(timeout=PATIENCE_S)
        assert (watch.returncode, said) == (0, "")
        until(lambda: screen.text().partition("\x1b[?25h\x1b[?1049l")[2], "the terminal as it was")
    left = screen.text().partition("\x1b[?25h\x1b[?1049l")[2]
    assert "2 waiting" in left
    assert "Ctrl-C" not in left
    assert re.match(r"[^\n]*\d\d:\d\d:\d\d [A-Z+-]", left), "the time with its zone"
    assert "\x1b[?" not in left
    assert "Traceback" not in screen.text()
    assert len(screen.latest().splitlines()) <= 20


@pytest.mark.usefixtures("tmp_path")
def test_watching_shows_limits_that_come_into_force_meanwhile(redis_url: str) -> None:
    env = {"DISPATCHER_REDIS_URL": redis_url, "TERM": "xterm"}
    for number in (5, 6):
        Path(f"{number}.yaml").write_text(f"global: {{limits: [{number}/1m]}}\n", encoding="utf-8")
    run("limits", "apply", "5.yaml", **env)
    with (
        Screen(columns=100, rows=20) as screen,
        started_on(Streams(stdout=screen.stream), "status", "--watch", **env) as watch,
    ):
        until(lambda: "0/5 in 1m" in screen.latest(), "the first figures")
        run("limits", "apply", "6.yaml", **env)
        until(lambda: "0/6 in 1m" in screen.latest(), "the figures of the new limits")
        assert "limits version 2, published by" in screen.latest()
        watch.send_signal(signal.SIGINT)
        watch.communicate(timeout=PATIENCE_S)


def test_spans_are_readable() -> None:
    assert [span(seconds) for seconds in (0.04, 9.94, 59.4, 59.6, 185, 7_860, 360_000)] == [
        "0.0s",
        "9.9s",
        "59s",
        "1m 0s",
        "3m 5s",
        "2h 11m",
        "4d 4h",
    ]
