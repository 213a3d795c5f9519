"""The page in a real browser: what only there shows."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from dispatcher.core.limits import Reason
from dispatcher.core.states import DeadLettered
from dispatcher.producer.blocking import Producer
from tests.browser.conftest import LIMITS, OLGA, Open
from tests.browser.situation import situation
from tests.support.commands import run
from tests.support.dead_letters import DENIED, EXHAUSTED, KEYS, REJECTED, buried, bury, numbered, on_lanes
from tests.support.processes import PATIENCE_S, Command, until
from tests.support.servers import Database, RedisServer
from tests.support.serving import TOKENS, Serving

pytestmark = pytest.mark.browser

VIEWS: Final = ("/", "/suppressed", "/explain", "/waiting", "/dead", "/silences", "/limits", "/audit")
MORE: Final = (
    "/limits?category=errors",
    "/suppressed?category=errors",
    "/explain?id=e1",
    "/explain?text=text",
    "/dead/e1",
    "/dead/none",
    "/dead?since=soon",
)
NASTY: Final = """<script>alert(1)</script>"'><img src=x onerror=alert(1)><svg onload=alert(1)>${alert(1)}"""
STORM: Final = 30_000
PIECE: Final = 10_000
"""So many events of the storm come together; the next ones come once each viewer has seen some of these."""
LONG: Final = "a-word-that-has-no-end-" * 20
WIDE: Final = "W" * 64
"""The longest name of a category, without a place to be broken."""

CONTRAST: Final = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = node => {
    for (let at = node; at; at = at.parentElement) {
      const found = rgba(getComputedStyle(at).backgroundColor);
      if (found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const faults = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
    const [a, b] = [light(rgba(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) faults.push(`${walker.currentNode.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return faults;
}"""


@pytest.fixture
def letters(redis: Database, redis_url: str, desk: Serving, tmp_path: Path) -> None:
    """Something in the views, also what is long and has no place to be broken."""
    bury(redis, numbered(5))
    bury(redis, [{"category": "deploys", "text": LONG, "id": LONG[:128]}], EXHAUSTED)
    bury(redis, [{"category": "errors", "text": "x", "id": "no-code"}], DeadLettered(Reason.EXHAUSTED, "no answer"))
    bury(redis, [{"category": "errors", "text": LONG, "id": "over"}], DENIED)
    bury(redis, [{"category": WIDE, "text": LONG, "id": "wide"}], REJECTED)
    Producer(redis).send_many([{"category": WIDE, "text": LONG}] * 3)
    (tmp_path / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_LIMITS_FILE": str(tmp_path / "limits.yaml")}
    assert run("worker", "--burst", **env, DISPATCHER_SINK="console").code == 0
    with desk.client("secret-of-olga") as olga:
        for matchers in ("host=db1", f"host={LONG[:200]}"):
            olga.post(
                "/v1/silences", json={"matchers": [matchers], "for": "2h", "end_if_idle": "1h", "why": LONG[:200]}
            )
        olga.delete("/v1/silences/1")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.usefixtures("letters")
def test_every_text_stands_out_from_its_ground(open_page: Open, wrong: list[str], scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    for path in (*VIEWS, *MORE):
        page.goto(path)
        assert page.evaluate(CONTRAST) == [], path
    _forget_refusals(wrong)


@pytest.mark.parametrize("width", [320, 600, 800, 1000, 1200])
@pytest.mark.usefixtures("letters")
def test_no_view_is_wider_than_its_window_and_no_table_hides_a_column(
    open_page: Open, wrong: list[str], width: int
) -> None:
    page = open_page(viewport={"width": width, "height": 640})
    for path in (*VIEWS, *MORE):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") == width, path
        cut = "[...document.querySelectorAll('.scroll')].filter(each => each.scrollWidth > each.clientWidth).length"
        assert page.evaluate(cut) == 0, path
    _forget_refusals(wrong)


def test_foreign_text_runs_nowhere(open_page: Open, redis: Database, desk: Serving) -> None:
    event = {"category": "errors", "text": NASTY, "id": NASTY, "labels": {"host": NASTY}}
    bury(redis, [event], DeadLettered(Reason.REJECTED, NASTY, NASTY))
    with desk.client("secret-of-olga") as olga:
        olga.put("/v1/pause/errors", json={"why": NASTY})
        olga.put("/v1/mutes/errors", json={"for": "2h", "why": NASTY})
        olga.post("/v1/silences", json={"matchers": [f"host={NASTY}"], "for": "2h", "why": NASTY})
        olga.post("/v1/silences", json={"matchers": [f"team={NASTY}"], "for": "2h", "why": NASTY})
        olga.delete("/v1/silences/3")
    page = open_page()
    typed = quote(NASTY)
    for path in (*VIEWS, "/explain?text=script", "/dead?text=script", f"/silences?matchers={typed}&why={typed}"):
        page.goto(path)
        page.wait_for_timeout(50)  # for what an image that is none would do
        assert page.locator("img, svg[onload], main script").count() == 0
    page.goto("/dead")
    page.locator("td.id a").click()
    assert NASTY in page.locator("pre").first.inner_text()


def test_100000_dead_letters_are_painted_within_300_ms(open_page: Open, redis: Database) -> None:
    bury(redis, numbered(100_000))
    page = open_page()
    page.goto("/audit")  # the browser has the style sheet, and the server its connections
    first_paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"

    def took_ms() -> float:
        page.goto("/dead")
        assert "100,000 are kept" in page.locator("main").inner_text()
        return float(until(lambda: page.evaluate(first_paint), "a paint"))

    # The least is what it takes; the rest is what else the machine does.
    assert min(took_ms() for _ in range(10)) < 300


def test_a_group_is_replayed_with_the_keyboard_alone(open_page: Open, redis: Database) -> None:
    bury(redis, numbered(3))
    bury(redis, [{"category": "deploys", "text": "x", "id": "d"}], EXHAUSTED)
    page = open_page()
    page.goto("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the content"
    assert page.locator(".skip").bounding_box()["x"] >= 0, "what has the focus is seen"
    _tab_to(page, "Dead letters")
    page.keyboard.press("Enter")
    page.wait_for_url("**/dead")
    _tab_to(page, "Replay…", "rejected")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url("**/dead/replay")
    assert "3 dead letters match." in page.locator("main").inner_text()
    assert on_lanes(redis) == []
    _tab_to(page, "Replay: 3")
    page.keyboard.press("Enter")
    page.wait_for_url("**/dead?replayed=3")
    assert (len(on_lanes(redis)), buried(redis)) == (3, ["d"])


def test_a_silence_is_added_and_expired_with_the_keyboard_alone(open_page: Open, redis: Database) -> None:
    bury(redis, [{"category": "errors", "text": "disk", "id": "e", "labels": {"host": "db1"}}])
    page = open_page()
    page.goto("/silences")
    for name, typed in (("matchers", "host=db1"), ("for", "2h"), ("why", "db1 moves")):
        _tab_to(page, name)
        page.keyboard.type(typed)
    page.keyboard.press("Enter")
    page.wait_for_url("**/silences/preview")
    assert "It would have matched 1 of the newest 1 event" in page.locator("main").inner_text()
    _tab_to(page, "Silence")
    page.keyboard.press("Enter")
    page.wait_for_url("**/silences?added=1")
    _tab_to(page, "Expire", "host=db1")
    page.keyboard.press("Enter")
    page.wait_for_url("**/silences?expired=1")
    assert "Nothing is silenced now." in page.locator("main").inner_text()


def test_what_is_new_comes_by_itself_and_leaves_the_focus_where_it_is(open_page: Open, redis: Database) -> None:
    bury(redis, numbered(2))
    page = open_page()
    page.goto("/dead")
    page.locator("td.id a", has_text="e0").focus()
    bury(redis, [{"category": "deploys", "text": "x", "id": "d"}], EXHAUSTED)
    page.get_by_role("rowheader", name="exhausted").wait_for(timeout=PATIENCE_S * 1_000)
    assert page.evaluate("document.activeElement.textContent") == "e0"
    page.locator("#by-category").fill("depl")
    bury(redis, [{"category": "deploys", "text": "x", "id": "d2"}], EXHAUSTED)
    page.locator("#by-category").blur()
    page.locator("td.id a", has_text="d2").wait_for(timeout=PATIENCE_S * 1_000)
    assert page.locator("#by-category").input_value() == "depl"


def test_what_is_new_comes_while_the_cursor_is_in_a_field_and_leaves_what_is_typed(
    open_page: Open, redis: Database, redis_url: str
) -> None:
    page = open_page()
    page.goto("/")
    field = page.locator("#by-text")
    field.fill("disk")
    Producer(redis).send_many([{"category": "errors", "text": "x"}] * 3)
    assert run("worker", "--burst", DISPATCHER_REDIS_URL=redis_url, DISPATCHER_SINK="console").code == 0
    page.get_by_text("A minute:").wait_for(timeout=PATIENCE_S * 1_000)  # a paragraph before the field
    page.keyboard.type(" db1")
    assert field.input_value() == "disk db1"
    page.evaluate("document.activeElement.blur()")
    with page.expect_response("**/*"):
        """The view is asked for again."""
    assert field.input_value() == "disk db1"


def test_while_text_is_selected_the_view_stays_and_says_how_old_it_is(open_page: Open, desk: Serving) -> None:
    page = open_page()
    page.goto("/")
    state = page.locator(".state p").first
    said = state.inner_text()
    page.evaluate("getSelection().selectAllChildren(document.querySelector('.state p'))")
    with desk.client(OLGA) as olga:
        olga.put("/v1/pause", json={"why": "a move"})
    page.get_by_text(re.compile(r"What is shown is \d+ s old")).wait_for(timeout=PATIENCE_S * 1_000)
    assert (state.inner_text(), page.evaluate("getSelection().toString()")) == (said, said)
    page.evaluate("getSelection().removeAllRanges()")
    page.get_by_text("a move").wait_for(timeout=PATIENCE_S * 1_000)
    assert page.locator(".held").is_hidden()


def test_it_says_that_it_is_not_reached_while_the_cursor_is_in_a_field(open_page: Open, desk: Serving) -> None:
    page = open_page()
    page.goto("/")
    page.locator("#by-text").focus()
    desk.signal(signal.SIGSTOP)
    try:
        page.locator(".away").wait_for(state="visible", timeout=PATIENCE_S * 1_000)
    finally:
        desk.signal(signal.SIGCONT)


def test_it_says_that_it_is_not_reached_and_goes_on_when_it_is(open_page: Open, wrong: list[str]) -> None:
    page = open_page()
    page.goto("/audit")
    page.context.set_offline(True)
    page.locator(".away").wait_for(state="visible", timeout=PATIENCE_S * 1_000)
    page.context.set_offline(False)
    page.locator(".away").wait_for(state="hidden", timeout=PATIENCE_S * 1_000)
    wrong[:] = [each for each in wrong if "ERR_INTERNET_DISCONNECTED" not in each]


def test_a_letter_that_is_gone_is_told_so_and_not_that_nothing_is_reached(
    open_page: Open, redis: Database, wrong: list[str]
) -> None:
    bury(redis, numbered(1))
    page = open_page()
    page.goto("/dead/e0")
    redis.delete(KEYS.dead, KEYS.dead_ids)
    page.get_by_text("there is no dead letter of the id 'e0'").wait_for(timeout=PATIENCE_S * 1_000)
    wrong[:] = [each for each in wrong if "404" not in each]


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (TOKENS.replace(OLGA, "another"), "no valid token"),
        (TOKENS.replace("read,operate", "ingest"), "does not have the scope"),
    ],
    ids=["gone", "of another scope"],
)
def test_a_token_that_opens_the_page_no_more_is_told_so_and_not_that_nothing_is_reached(
    chromium: Any,  # noqa: ANN401 - playwright's
    redis_url: str,
    tmp_path: Path,
    tokens: str,
    said: str,
) -> None:
    (tmp_path / "tokens").write_text(TOKENS, encoding="utf-8")
    with Serving(redis_url, tmp_path, "--tokens", "tokens") as serving:
        context = chromium.new_context(base_url=serving.url, http_credentials={"username": "", "password": OLGA})
        page = context.new_page()
        page.goto("/audit")
        (tmp_path / "tokens").write_text(tokens, encoding="utf-8")
        serving.signal(signal.SIGHUP)
        page.locator("main").get_by_text(said).wait_for(timeout=PATIENCE_S * 1_000)
        assert page.locator("script").count() == 0
        context.close()


def test_while_redis_is_away_it_says_so_and_goes_on_when_it_is_back(
    chromium: Any,  # noqa: ANN401 - playwright's
    own_server: RedisServer,
    tmp_path: Path,
) -> None:
    with Serving(own_server.url, tmp_path) as serving:
        context = chromium.new_context(base_url=serving.url)
        page = context.new_page()
        page.goto("/audit")
        own_server.stop()
        page.locator(".away").wait_for(state="visible", timeout=PATIENCE_S * 1_000)
        told = page.locator(".away").inner_text()
        assert told.endswith("What is shown is from before; it is tried again.")
        assert "Not reachable" not in told
        own_server.start()
        page.locator(".away").wait_for(state="hidden", timeout=PATIENCE_S * 1_000)
        context.close()


def test_it_says_that_a_process_that_hangs_is_not_reached(open_page: Open, desk: Serving) -> None:
    page = open_page()
    page.goto("/audit")
    desk.signal(signal.SIGSTOP)
    try:
        page.locator(".away").wait_for(state="visible", timeout=PATIENCE_S * 1_000)
    finally:
        desk.signal(signal.SIGCONT)
    page.locator(".away").wait_for(state="hidden", timeout=PATIENCE_S * 1_000)


@pytest.mark.usefixtures("letters")
def test_without_scripts_every_view_is_the_same(open_page: Open) -> None:
    plain, usual = open_page(java_script_enabled=False), open_page()
    usual.goto("/limits")  # a viewer of the test before may have looked just now, which counts for a second
    usual.get_by_text("Version 1 is in force").wait_for(timeout=PATIENCE_S * 1_000)
    for path in ("/silences", "/limits", "/audit", "/dead"):
        plain.goto(path)
        usual.goto(path)
        assert plain.locator("main").inner_text() == usual.locator("main").inner_text()
    plain.goto("/dead?category=deploys")
    plain.locator("button", has_text="Remove what matches…").click()
    plain.locator("button", has_text="Remove for good: 1").click()
    assert "1 purged." in plain.locator("main").inner_text()


def test_an_operator_finds_what_is_wrong_where_an_alert_is_and_replays_what_died(
    chromium: Any,  # noqa: ANN401 - playwright's
    tmp_path: Path,
) -> None:
    with situation(tmp_path) as serving:
        context = chromium.new_context(base_url=serving.url, http_credentials={"username": "", "password": OLGA})
        page = context.new_page()
        page.goto("/")
        said = page.locator(".state").inner_text()
        assert "It works, but in the last 30 minutes 7 events died: 7 rejected." in said
        assert "More workers would not help: no event waits for one" in said
        assert "the bank does not answer" in page.locator("tr", has_text="the bank").inner_text()
        page.get_by_role("link", name="76 by their own limits").click()
        row = page.locator("table[aria-labelledby=now] tbody tr").inner_text()
        assert "the limit of category errors, 10 in 30m" in row
        page.get_by_role("link", name="Now").click()
        page.get_by_label("Find events by words of their text").fill("replica db1")
        page.keyboard.press("Enter")
        page.get_by_role("link").and_(page.locator("td.id a")).click()
        assert "Sent to #oncall" in page.locator(".state").inner_text()
        page.get_by_role("link", name="Dead letters").click()
        group = page.locator("tr", has_text="no such channel")
        assert "Slack refuses it" in group.inner_text()
        group.get_by_role("button", name="Replay rejected").click()
        page.get_by_role("button", name="Replay: 4").click()
        assert "4 replayed." in page.locator("main").inner_text()
        context.close()


def test_two_viewers_follow_a_storm_that_drains_and_its_books_balance_at_each_look(
    open_page: Open, redis: Database, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    viewers = {path: open_page() for path in ("/", "/suppressed")}
    for path, page in viewers.items():
        page.goto(path)
        page.evaluate("window.isTheSame = true")
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_SINK": "console", "DISPATCHER_LIMITS_FILE": "limits.yaml"}
    with Command("worker", env=env, cwd=tmp_path, name="worker"):
        for sent in range(0, STORM, PIECE):
            Producer(redis).send_many({"category": "storm", "text": f"text {n}"} for n in range(sent, sent + PIECE))
            for page in viewers.values():
                while _received(page) <= sent:
                    page.wait_for_timeout(200)
        for page in viewers.values():
            while _received(page) < STORM:
                page.wait_for_timeout(200)
    for page in viewers.values():
        assert page.evaluate("window.isTheSame")
        assert page.locator(".away").is_hidden()
    assert "29,990" in viewers["/"].locator("tr[data-key=storm]").inner_text()
    told = viewers["/suppressed"].locator("table").first.inner_text()
    assert ("storm" in told, "the limit of category storm, 10 in 30m" in told) == (True, True)


def test_two_viewers_cost_the_server_less_than_2_percent_of_a_core(open_page: Open, redis: Database) -> None:
    bury(redis, [{"category": f"c{n % 50}", "text": "x", "id": f"e{n}"} for n in range(2_000)])
    first, second = open_page(), open_page()
    first.goto("/")
    second.goto("/")
    before, begin_s = _used_s(redis), time.monotonic()
    for _ in range(5):
        with first.expect_response("**/*"):
            """The view is asked for again every 2 seconds."""
    assert (_used_s(redis) - before) / (time.monotonic() - begin_s) < 0.02


def _received(page: Any) -> int:  # noqa: ANN401 - playwright's
    """What the foot of a view says was received; that is the sum of all else there."""
    said = page.locator("footer").inner_text()
    counts = {name: int(count.replace(",", "")) for name, count in re.findall(r"([a-z ]+) ([\d,]+)", said)}
    received = counts.pop("received")
    assert sum(counts.values()) == received
    assert "the books balance" in said
    return received


def _used_s(redis: Database) -> float:
    facts = redis.info("cpu")
    return float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"])


def _tab_to(page: Any, text: str, row: str = "") -> None:  # noqa: ANN401 - playwright's
    """Press Tab until an element of this text or name, in a row with that one, has the focus."""
    element = "document.activeElement"
    said = f"[{element}.textContent.trim() || {element}.name, {element}.closest('tr')?.textContent ?? '']"
    for _ in range(60):
        page.keyboard.press("Tab")
        found, around = page.evaluate(said)
        if found == text and row in around:
            return
    raise AssertionError(f"no way with Tab to {text!r}")


def _forget_refusals(wrong: list[str]) -> None:
    """The browser tells of each answer that is no success; those that were asked for here are meant."""
    wrong[:] = [each for each in wrong if "the server responded with a status of 4" not in each]
