"""``dispatcher limits``: what the file says, how much of it is used, and what may stand in it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dispatcher.core.limits import Limit, Scope
from dispatcher.limiter import Limiter
from dispatcher.server.embedded import EmbeddedServer
from dispatcher.server.keys import Keys
from dispatcher.settings.limits_file import read_limits
from dispatcher.settings.limits_json_schema import limits_json_schema
from dispatcher.settings.redaction import redacted_url
from dispatcher.store.versions import Unless, Versions
from tests.support.commands import run
from tests.support.servers import Database

pytestmark = pytest.mark.usefixtures("tmp_path")


def test_every_rule_is_printed_as_a_sentence() -> None:
    Path("my.yaml").write_text("global: {limits: [5/1s]}\ncategories: {errors: {limits: [3/1m]}}\n", encoding="utf-8")
    result = run("limits", "check", "my.yaml")
    assert result.code == 0
    assert result.out.splitlines()[0] == "All events together: at most 5 in any second."
    assert result.out.splitlines()[1].startswith("errors: at most 3 in any minute")
    assert result.err == "dispatcher: limits in my.yaml\n"


def test_of_quiet_hours_it_is_said_when_they_come_next() -> None:
    text = "quiet: {nights: {times: ['22:00-07:00'], zone: Asia/Kolkata, then: drop}}\n"
    Path("my.yaml").write_text(text, encoding="utf-8")
    said = run("limits", "check", "my.yaml").out.splitlines()[-1]
    date = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    assert re.fullmatch(
        rf"Quiet hours nights: (next from|now, since) {date} 22:00,? until {date} 07:00 .Asia/Kolkata.\.", said
    )
    facts = json.loads(run("limits", "check", "my.yaml", "--json").out)["quiet"]
    assert facts.keys() == {"nights"}
    assert facts["nights"]["ends"] - facts["nights"]["begins"] == 9 * 3_600
    assert facts["nights"]["begins"] % 86_400 == 16.5 * 3_600


def test_without_a_file_it_is_the_one_in_force() -> None:
    Path("other.yaml").write_text("global: {limits: []}\n", encoding="utf-8")
    result = run("limits", "check", "--json", DISPATCHER_LIMITS_FILE="other.yaml", DISPATCHER_LIMTS="x")
    assert result.code == 0
    assert json.loads(result.out)["file"] == str(Path.cwd() / "other.yaml")
    assert json.loads(result.out)["rules"][0] == "All events together: no limit."
    assert result.err.startswith("dispatcher: warning: DISPATCHER_LIMTS is not a known variable")


def test_a_warning_is_no_fault() -> None:
    Path("my.yaml").write_text("global: {limits: [5/1m, 900/1h]}\n", encoding="utf-8")
    result = run("limits", "check", "my.yaml")
    assert result.code == 0
    assert "dispatcher: warning: my.yaml:1:25: global.limits[1]: 900/1h can never bind" in result.err
    assert "warning" not in result.out


def test_the_use_of_each_limit_is_shown(redis: Database, redis_url: str) -> None:
    Path("limits.yaml").write_text(
        "global: {limits: [100/30m]}\n"
        "defaults: {limits: [7/1h], channel: '#all', fallback: '#ops'}\n"
        "categories:\n"
        "  errors: {limits: [2/1m, 10/1h], on_limit: dead-letter, channel: '#oncall',\n"
        "    routes: [{match: severity!=low host=db*, channel: '#db'}]}\n"
        "  audit: {limits: []}\n"
        "quiet: {nights: {times: ['22:00-07:00'], zone: UTC, then: drop}}\n",
        encoding="utf-8",
    )
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_LIMITS_FILE": "limits.yaml"}
    limiter = Limiter(redis, namespace="dispatcher")
    for name, limits in (("errors", "2/1m 10/1h"), ("errors", "2/1m 10/1h"), ("deploys", "7/1h")):
        windows = tuple(Limit.parse(text) for text in limits.split())
        limiter.try_acquire([Scope("global", (Limit.parse("100/30m"),)), Scope(f"category:{name}", windows)])
    redis.hincrby(Keys("dispatcher").totals, "sent deploys", 1)
    redis.hincrby(Keys("dispatcher").totals, "dead -", 1)

    result = run("limits", "show", "--json", **env)
    assert (result.code, result.err) == (0, "")
    shown = json.loads(result.out)
    assert shown["categories"]["errors"]["limits"][0].pop("next_free_s") == pytest.approx(55, abs=5)
    to_all = {"on_limit": "drop", "channel": "#all", "routes": [], "fallback": "#ops"}
    errors, rest = {"scope": "category:errors", "used": 2, "kind": "rolling"}, {"kind": "rolling", "next_free_s": 0.0}
    assert shown == {
        "version": None,
        "file": str(Path.cwd() / "limits.yaml"),
        "same_as_file": None,
        "by": None,
        "from": None,
        "global": {"limits": [{"scope": "global", "max": 100, "window_s": 1800, "used": 3, **rest}]},
        "categories": {
            "errors": {
                "in_file": True,
                "on_limit": "dead-letter",
                "channel": "#oncall",
                "routes": [{"match": "host=db* severity!=low", "channel": "#db"}],
                "fallback": "#ops",
                "limits": [{**errors, "max": 2, "window_s": 60}, {**errors, "max": 10, "window_s": 3600, **rest}],
                "per_label": {},
            },
            "audit": {**to_all, "in_file": True, "limits": [], "per_label": {}},
            "deploys": {
                **to_all,
                "in_file": False,
                "limits": [{"scope": "category:deploys", "max": 7, "window_s": 3600, "used": 1, **rest}],
                "per_label": {},
            },
        },
        "unknown_categories": "accept",
        "defaults": {**to_all, "limits": ["7/1h"], "per_label": {}},
    }

    result = run("limits", "show", **env)
    assert result.err == f"dispatcher: namespace dispatcher on {redacted_url(redis_url)}, limits in limits.yaml\n"
    route, gone, quiet, following = result.out.splitlines()[-4:]
    assert gone.startswith("If the channel of an event of errors, audit and any other category is gone or archived, it")
    assert route.startswith("errors, route 1: an event that names no channel is posted to #db if")
    assert quiet.startswith("Quiet hours nights: from 22:00 to 07:00")
    assert following.startswith("Quiet hours nights: n")
    lines = [re.sub(r"[█░ ]+", " ", line).strip() for line in result.out.splitlines()]
    assert "all together 3/100 in 30m" in lines
    assert re.search(
        r"^errors 2/2 in 1m in [0-9ms ]+ dead-letter #oncall, or 1 route\n2/10 in 1h$", "\n".join(lines), re.MULTILINE
    )
    for line in ("audit none drop #all", "deploys 1/7 in 1h drop #all", "any other, each 0/7 in 1h drop #all"):
        assert line in lines


SHARES = """\
global: {limits: [20/2m]}
categories:
  errors: {guarantee: 5, limits: [4/1d fixed], per_label: {host: [3/10m, 9/1h fixed]}}
  deploys: {guarantee: 1, limits: []}
"""


@pytest.mark.parametrize("width", [100, 60, 50, 40])
def test_on_a_narrow_terminal_the_names_of_the_categories_stay(redis: Database, redis_url: str, width: int) -> None:
    Path("limits.yaml").write_text(SHARES, encoding="utf-8")
    errors = Scope("category:errors", (Limit.parse("4/1d fixed"),))
    Limiter(redis, namespace="dispatcher").try_acquire_many([[errors]] * 4)
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_LIMITS_FILE": "limits.yaml", "COLUMNS": str(width)}
    table = run("limits", "show", **env).out.partition("\n\nA guarantee")[0].splitlines()
    assert max(map(len, table)) <= width
    rows = {line.partition("  ")[0]: line for line in table}
    assert {"errors", "deploys", "shared"} <= rows.keys()
    assert re.search(r"4/4 in 1d.* in [0-9]+[hms]", rows["errors"])
    headings = {
        "Category",
        "Limit",
        "Room",
        *(["Over it"] if width >= 60 else []),
        *(["Channel"] if width >= 100 else []),
    }
    assert set(re.split(" {2,}", rows["Category"])) - {"Use"} == headings


def test_limits_show_and_status_show_guarantees_and_the_shared_rest(redis: Database, redis_url: str) -> None:
    Path("limits.yaml").write_text(SHARES, encoding="utf-8")
    policy = read_limits(SHARES, "limits.yaml").policy
    limiter = Limiter(redis, namespace="dispatcher")
    for name, count in (("errors", 3), ("deploys", 2), ("news", 4)):
        for _ in range(count):
            assert limiter.try_acquire(policy.scopes(name))
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_LIMITS_FILE": "limits.yaml"}
    for command in (("limits", "show"), ("status",)):
        shown = json.loads(run(*command, "--json", **env).out)
        together, shared = shown["global"]["limits"]
        assert {name: shared[name] for name in ("scope", "max", "used", "kind")} == {
            "scope": "shared", "max": 14, "used": 5, "kind": "rolling",
        }  # fmt: skip
        assert shared.keys() == together.keys()
        daily, share = shown["categories"]["errors"]["limits"]
        assert (daily["scope"], daily["kind"], daily["used"]) == ("category:errors", "fixed", 3)
        assert (share["scope"], share["used"], share["max"]) == ("guarantee:errors", 3, 5)
        (share,) = shown["categories"]["deploys"]["limits"]
        assert (share["scope"], share["used"], share["max"]) == ("guarantee:deploys", 1, 1)
        assert 0 < share["next_free_s"] <= 120

        drawn = run(*command, **env).out
        lines = [re.sub(r"[█░ ]+", " ", line).strip() for line in drawn.splitlines()]
        assert re.search(r"^shared 5/14 in 2m$", "\n".join(lines), re.MULTILINE)
        assert any(re.match(r"errors .*3/4 in 1d fixed", line) for line in lines)
        assert "3/5 kept in 2m" in lines
        assert any(re.match(r"1/1 kept in 2m in ", line) for line in lines)

    assert {"3 in 10m for each host", "9 in 1h fixed for each host"} <= set(limits_shown(env))
    per_label = json.loads(run("limits", "show", "--json", **env).out)["categories"]["errors"]["per_label"]
    assert per_label == {"host": ["3/10m", "9/1h fixed"]}


def limits_shown(env: dict[str, str]) -> list[str]:
    return [line.strip() for line in run("limits", "show", **env).out.splitlines()]


def test_without_guarantees_nothing_is_said_of_them(redis_url: str) -> None:
    for command in (("limits", "show"), ("status",)):
        shown = run(*command, DISPATCHER_REDIS_URL=redis_url).out
        assert "all together" in shown
        assert "shared" not in shown
        assert "kept" not in shown


def test_categories_that_are_not_accepted_have_no_limits_to_show(redis: Database, redis_url: str) -> None:
    Path("limits.yaml").write_text("unknown_categories: reject\ncategories: {errors: {}}\n", encoding="utf-8")
    redis.hincrby(Keys("dispatcher").totals, "dead deploys", 1)
    result = run("limits", "show", DISPATCHER_REDIS_URL=redis_url, DISPATCHER_LIMITS_FILE="limits.yaml")
    assert result.code == 0
    assert "deploys" not in result.out
    assert re.search(r"any other, each +not accepted +dead-letter", result.out)


def test_nothing_is_shown_where_nothing_has_run() -> None:
    result = run("limits", "show")
    assert (result.code, result.out) == (78, "")
    assert "nothing has run here" in result.err


def test_the_schema_is_printed_whole() -> None:
    result = run("limits", "schema")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == limits_json_schema()


# Changing what is in force

OLD = "categories: {errors: {limits: [10/30m]}, gone: {limits: [1/1h]}}\n"
NEW = "# the same but for\ncategories: {errors: {limits: [20/30m]}}\nunknown_categories: accept\n"


def write(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


@pytest.fixture
def env(redis_url: str) -> dict[str, str]:
    return {"DISPATCHER_REDIS_URL": redis_url}


def test_a_file_is_put_in_force_as_a_new_version_each_time(redis: Database, env: dict[str, str]) -> None:
    first = run("limits", "apply", write("old.yaml", OLD), **env)
    assert (first.code, first.out) == (0, "version 1 is in force\n")
    second = run("limits", "apply", write("new.yaml", NEW), "--json", **env)
    assert json.loads(second.out) == {"version": 2, "was": 1, "file": "new.yaml", "known": None}
    again = run("limits", "apply", "old.yaml", **env)
    assert (again.code, again.out) == (0, "version 3 is in force; it says what version 1 said\n")
    unchanged = run("limits", "apply", "old.yaml", **env)
    assert unchanged.code == 0
    assert unchanged.out == "version 3 is in force already and says the same: nothing has changed\n"
    version = Versions(redis, Keys("dispatcher")).in_force()
    assert version is not None
    assert (version.number, version.file) == (3, str(Path.cwd() / "old.yaml"))
    assert "@" in version.by


def test_every_fault_of_a_file_is_said_at_once_with_its_place_and_none_is_put_in_force(
    redis: Database, env: dict[str, str]
) -> None:
    write("bad.yaml", "global: {limits: [10/30]}\ncategoris: {}\n")
    for command in ("check", "apply", "diff"):
        result = run("limits", command, "bad.yaml", **env)
        assert (result.code, result.out) == (78, "")
        assert [line.split(": ")[2] for line in result.err.splitlines()] == ["bad.yaml:1:19", "bad.yaml:2:1"]
    assert redis.keys() == []


def test_an_empty_file_is_not_put_in_force(env: dict[str, str]) -> None:
    run("limits", "apply", write("old.yaml", OLD), **env)
    refused = run("limits", "apply", write("empty.yaml", ""), **env)
    said = "empty.yaml: the file is empty; if the built-in defaults are meant, write {} into it"
    assert (refused.code, refused.out, refused.err) == (78, "", f"dispatcher: error: {said}\n")
    done = run("limits", "apply", write("defaults.yaml", "{}"), **env)
    assert (done.code, done.out) == (0, "version 2 is in force\n")


def test_with_if_version_a_file_is_put_in_force_only_over_that_version(env: dict[str, str]) -> None:
    write("old.yaml", OLD)
    refused = run("limits", "apply", "old.yaml", "--if-version", "1", **env)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == "dispatcher: error: no version is in force, expected version 1: nothing has changed\n"
    run("limits", "apply", "old.yaml", **env)
    done = run("limits", "apply", write("new.yaml", NEW), "--if-version", "1", **env)
    assert (done.code, done.out) == (0, "version 2 is in force\n")
    for file in ("old.yaml", "new.yaml"):
        refused = run("limits", "apply", file, "--if-version", "1", **env)
        assert (refused.code, refused.out) == (1, "")
        assert "version 2 is in force, expected version 1: nothing has changed" in refused.err


def test_a_kept_version_is_put_in_force_again_and_the_history_tells_of_it(env: dict[str, str]) -> None:
    assert run("limits", "history", **env).out.startswith("no version was published yet")
    run("limits", "apply", write("old.yaml", OLD), **env)
    run("limits", "apply", write("new.yaml", NEW), **env)
    done = run("limits", "rollback", "1", **env)
    assert (done.code, done.out) == (0, "version 3 is in force; it says what version 1 said\n")
    assert run("limits", "diff", "old.yaml", **env).code == 0
    assert json.loads(run("limits", "rollback", "2", "--json", **env).out) == {"version": 4, "was": 3, "says": 2}
    versions = json.loads(run("limits", "history", "--json", **env).out)["versions"]
    assert [(each["version"], each["in_force"]) for each in versions] == [(4, True), (3, False), (2, False), (1, False)]
    assert [each["from"] for each in versions[:2]] == ["version 2", "version 1"]
    assert versions[3]["from"] == str(Path.cwd() / "old.yaml")
    rows = run("limits", "history", **env).out.splitlines()[2:]
    assert re.fullmatch(r"4  in force  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d  \S+@\S+  version 2", rows[0].strip())
    assert [row.split()[0] for row in rows] == ["4", "3", "2", "1"]
    assert "in force" not in "".join(rows[1:])


def test_what_a_version_says_that_is_hardly_meant_is_said_before_it_is_put_in_force(env: dict[str, str]) -> None:
    odd = write("odd.yaml", "global: {limits: [5/1m, 900/1h]}\n")
    said = "global.limits[1]: 900/1h can never bind"
    for step in (("diff", odd), ("apply", odd), ("apply", write("new.yaml", NEW)), ("rollback", "1")):
        assert (said in run("limits", *step, **env).err) is (step[1] != "new.yaml"), step


@pytest.mark.parametrize("step", [("diff", "old.yaml"), ("apply", "old.yaml"), ("rollback", "1")])
def test_what_is_odd_with_the_data_of_the_embedded_server_is_said_by_the_command_that_starts_it(
    step: tuple[str, str],
) -> None:
    """It is said once: whoever starts the server next is told nothing."""
    here = {"DISPATCHER_DATA_DIR": "data"}
    EmbeddedServer.join(Path("data")).close()
    assert run("limits", "apply", write("old.yaml", OLD), **here).code == 0
    record = Path("data/server.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "version": [99, 0, 0]}))
    assert "99.0.0 and is now read by" in run("limits", *step, **here).err
    assert "99.0.0" not in run("limits", *step, **here).err


def test_a_version_that_is_not_kept_or_cannot_be_read_is_not_put_in_force(redis: Database, env: dict[str, str]) -> None:
    newer = '{"categories": {"errors": {"some_day": true}}}'
    Versions(redis, Keys("dispatcher")).publish(newer, "f" * 16, by="eve@far", file="x.yaml", unless=Unless.SAME)
    run("limits", "apply", write("old.yaml", OLD), **env)
    result = run("limits", "rollback", "7", **env)
    assert (result.code, result.out) == (1, "")
    assert "limits version 7 is not kept, expected one of 1 to 2: see 'dispatcher limits history'" in result.err
    result = run("limits", "rollback", "1", **env)
    assert (result.code, result.out) == (78, "")
    assert "limits version 1:1:" in result.err
    assert json.loads(run("limits", "show", "--json", **env).out)["version"] == 2


def test_a_difference_is_shown_rule_by_rule(env: dict[str, str]) -> None:
    run("limits", "apply", write("old.yaml", OLD), **env)
    result = run("limits", "diff", write("new.yaml", NEW), **env)
    assert result.code == 1
    errors = "posted to #notifications; beyond that the event is dropped with a log line; waits at most 24 hours."
    assert result.out.splitlines() == [
        "- errors: at most 10 in any 30 minutes, posted to #notifications.",
        "+ errors: at most 20 in any 30 minutes, posted to #notifications.",
        "- gone: at most 1 in any hour, posted to #notifications.",
        "+ gone: at most 10 in any 30 minutes, posted to #notifications.",
    ]
    assert result.err.startswith("dispatcher: limits in new.yaml, against version 1, published by ")
    shown = json.loads(run("limits", "diff", "new.yaml", "--json", **env).out)
    assert (shown["file"], shown["version"], len(shown["changes"])) == ("new.yaml", 1, 2)
    assert shown["changes"][1]["was"] == f"gone: at most 1 in any hour, {errors}"
    write("strict.yaml", f"{NEW.replace('accept', 'reject')}channels: {{'#a': {{pace: none}}}}\n")
    run("limits", "apply", "strict.yaml", **env)
    shown = json.loads(run("limits", "diff", "old.yaml", "--json", **env).out)
    gone, channel = shown["changes"][1], shown["changes"][-1]
    assert gone["was"] == "gone: not accepted, its events become dead letters."
    assert channel == {"was": "Channel #a: no pace, messages are posted as they come.", "will_be": None}


def test_of_a_rule_that_changes_only_the_clauses_are_shown_that_do(env: dict[str, str]) -> None:
    run("limits", "apply", write("old.yaml", "defaults: {allow_mentions: true, template: 'x; y'}"), **env)
    out = run("limits", "diff", write("new.yaml", "defaults: {max_age: 2h, template: 'x; z'}"), **env).out
    assert out.splitlines() == [
        "- Any category, each separately: mentions in its events' own markup notify people; waits at most 24 hours.",
        "+ Any category, each separately: waits at most 2 hours.",
        '- defaults.template: "x; y"',
        '+ defaults.template: "x; z"',
    ]
    out = run("limits", "diff", write("new.yaml", "defaults: {template: 'x; y'}"), **env).out
    assert out == "- Any category, each separately: mentions in its events' own markup notify people.\n"


def test_a_name_with_a_semicolon_is_no_end_of_a_clause(env: dict[str, str]) -> None:
    run("limits", "apply", write("old.yaml", "defaults: {username: 'disks; all'}"), **env)
    out = run("limits", "diff", write("new.yaml", "defaults: {username: 'disks; db1'}"), **env).out
    assert out.splitlines() == [
        '- Any category, each separately: shown as "disks; all".',
        '+ Any category, each separately: shown as "disks; db1".',
    ]


def test_a_file_that_says_the_same_makes_no_difference(env: dict[str, str]) -> None:
    run("limits", "apply", write("new.yaml", NEW), **env)
    write("same.yaml", "categories: {errors: {limits: [20/1800s]}}\n")
    result = run("limits", "diff", "same.yaml", **env)
    assert (result.code, result.out) == (0, "no difference\n")
    result = run("limits", "diff", "same.yaml", "--json", **env)
    assert (result.code, json.loads(result.out)["changes"]) == (0, [])


def test_a_difference_without_a_file_is_that_of_the_settings_file(env: dict[str, str]) -> None:
    run("limits", "apply", write("old.yaml", OLD), **env)
    result = run("limits", "diff", "--json", **env, DISPATCHER_LIMITS_FILE=write("new.yaml", NEW))
    assert (result.code, json.loads(result.out)["file"]) == (1, str(Path.cwd() / "new.yaml"))


HOOK = "hooks: {ci: {verify: token, header: X-Token, secret_file: /run/secret, category: ci, text: '{{ body.a }}'}}\n"


@pytest.mark.parametrize(
    ("old", "new", "keys"),
    [
        pytest.param(
            "categories: {errors: {max_parked: 5}}\n",
            "categories: {errors: {max_parked: 6}}\n",
            ["- categories.errors.max_parked: 5", "+ categories.errors.max_parked: 6"],
            id="that has no effect",
        ),
        pytest.param(
            "categories: {errors: {limits: [1/1m], template: a}}\n",
            "categories: {errors: {limits: [2/1m], template: b}}\n",
            ['- categories.errors.template: "a"', '+ categories.errors.template: "b"'],
            id="of a rule that reads differently",
        ),
        pytest.param(
            HOOK,
            HOOK.replace("body.a", "body.b"),
            ['- hooks.ci.text: "{{ body.a }}"', '+ hooks.ci.text: "{{ body.b }}"'],
        ),
        pytest.param(
            "categories: {errors: {on_limit: defer, max_parked: 5}}\n",
            "categories: {errors: {on_limit: defer, max_parked: 6}}\n",
            [],
            id="that its sentence says",
        ),
        pytest.param(
            "categories: {errors: {limits: [1/1m], on_limit: defer, digest_delay: 3m, max_parked: 5}}\n",
            "categories: {errors: {limits: [2/1m], on_limit: drop, digest_delay: 2m, max_parked: 6}}\n",
            [
                '- categories.errors.digest_delay: "3m"',
                '+ categories.errors.digest_delay: "2m"',
                "- categories.errors.max_parked: 5",
                "+ categories.errors.max_parked: 6",
            ],
            id="that its sentence would say over a limit that defers",
        ),
        pytest.param(
            "global: {limits: []}\ncategories: {errors: {limits: [1/1m], on_limit: defer, max_parked: 5}}\n",
            "global: {limits: []}\ncategories: {errors: {limits: [], on_limit: digest, max_parked: 6}}\n",
            [
                "- categories.errors.max_parked: 5",
                "+ categories.errors.max_parked: 6",
                '- categories.errors.on_limit: "defer"',
                '+ categories.errors.on_limit: "digest"',
            ],
            id="that the sentence of a category without limits does not say",
        ),
        pytest.param(
            "defaults: {on_limit: defer, max_parked: 5, digest_delay: 1m}\n",
            "defaults: {on_limit: digest, max_parked: 6, digest_delay: 2m}\n",
            ["- defaults.max_parked: 5", "+ defaults.max_parked: 6"],
            id="of the defaults",
        ),
    ],
)
def test_a_difference_that_no_sentence_shows_is_one_of_keys(
    old: str, new: str, keys: list[str], env: dict[str, str]
) -> None:
    """Also where another rule reads differently."""
    run("limits", "apply", write("old.yaml", f"{old}channels: {{'#a': {{pace: none}}}}\n"), **env)
    result = run("limits", "diff", write("new.yaml", new), **env)
    assert result.code == 1
    assert "- Channel #a: no pace, messages are posted as they come." in result.out.splitlines()
    assert [line for line in result.out.splitlines() if re.match(r"[-+] \w+\.", line)] == keys


def test_rules_that_are_gone_stand_in_the_order_of_the_older_limits(env: dict[str, str]) -> None:
    names = ["#f", "#b", "#d", "#a", "#c", "#e"]
    paces = ", ".join(f"'{name}': {{pace: none}}" for name in names)
    run("limits", "apply", write("old.yaml", f"channels: {{{paces}}}\n"), **env)
    out = run("limits", "diff", write("new.yaml", ""), **env).out
    assert [line.split()[2].rstrip(":") for line in out.splitlines() if line.startswith("- Channel")] == names


def test_against_nothing_every_rule_is_new(env: dict[str, str]) -> None:
    result = run("limits", "diff", write("new.yaml", ""), **env)
    assert result.code == 1
    assert len(result.out.splitlines()) == 5
    assert all(line.startswith("+ ") for line in result.out.splitlines())
    assert ", no version is in force, " in result.err.splitlines()[-1]


LOOKS = (("limits", "show"), ("status",), ("parked", "list"))


def headlines(env: dict[str, str]) -> set[str]:
    """What each command that looks says of the limits."""
    return {run(*command, **env).err.splitlines()[0].partition(", limits ")[2] for command in LOOKS}


def identity(env: dict[str, str]) -> dict[str, object]:
    """Which limits are in force, as both JSON documents have it."""
    of_status = json.loads(run("status", "--json", **env).out)["limits"]
    shown = json.loads(run("limits", "show", "--json", **env).out)
    assert {key: shown[key] for key in of_status} == of_status
    return {key: of_status[key] for key in ("version", "file", "same_as_file")}


def test_limits_in_force_that_are_not_those_of_the_file_are_shown_and_said_to_be(env: dict[str, str]) -> None:
    env = {**env, "DISPATCHER_LIMITS_FILE": write("limits.yaml", OLD)}
    file = str(Path.cwd() / "limits.yaml")
    run("limits", "apply", "limits.yaml", **env)
    assert headlines(env) == {"version 1, as limits.yaml says"}
    assert identity(env) == {"version": 1, "file": file, "same_as_file": True}
    write("limits.yaml", NEW)
    assert headlines(env) == {
        "version 1 is in force, NOT what limits.yaml says: 'dispatcher limits apply limits.yaml' publishes it"
    }
    assert identity(env) == {"version": 1, "file": file, "same_as_file": False}
    for command in ("limits show", "status"):
        shown = json.loads(run(*command.split(), "--json", **env).out)
        assert shown["categories"]["errors"]["limits"][0]["max"] == 10


def test_a_file_in_the_current_folder_is_compared_and_the_packaged_one_is_not(env: dict[str, str]) -> None:
    run("limits", "apply", write("old.yaml", OLD), **env)
    (said,) = headlines(env)
    assert re.fullmatch(r"version 1, published by \S+@\S+ from old\.yaml", said)
    assert identity(env) == {"version": 1, "file": None, "same_as_file": None}
    Path("config").mkdir()
    write("config/limits.yaml", NEW)
    (said,) = headlines(env)
    assert said.startswith("version 1 is in force, NOT what config/limits.yaml says")


@pytest.mark.parametrize("text", ["no limits", None], ids=["faults", "missing"])
def test_a_file_that_cannot_be_compared_stops_no_command_that_looks(env: dict[str, str], text: str | None) -> None:
    run("limits", "apply", write("old.yaml", OLD), **env)
    env = {**env, "DISPATCHER_LIMITS_FILE": "my.yaml"}
    if text is not None:
        write("my.yaml", text)
    (said,) = headlines(env)
    assert said.endswith(" from old.yaml; my.yaml has faults: 'dispatcher limits check' names them")
    assert identity(env) == {"version": 1, "file": str(Path.cwd() / "my.yaml"), "same_as_file": None}
    assert run("limits", "check", **env).code == 78


def test_a_check_says_which_version_is_in_force(env: dict[str, str]) -> None:
    env = {**env, "DISPATCHER_LIMITS_FILE": write("new.yaml", NEW)}
    assert run("limits", "check", **env).err == "dispatcher: limits in new.yaml\n"
    assert json.loads(run("limits", "check", "--json", **env).out)["in_force"] is None
    run("limits", "apply", "new.yaml", **env)
    said = run("limits", "check", **env).err.splitlines()[1]
    assert said == "dispatcher: in force is version 1, which says the same"
    run("limits", "apply", write("old.yaml", OLD), **env)
    said = run("limits", "check", **env).err.splitlines()[1]
    assert said.endswith("version 2, which says something else: see 'dispatcher limits diff new.yaml'")
    assert json.loads(run("limits", "check", "--json", **env).out)["in_force"] == 2
    assert "in force" not in run("limits", "check", "new.yaml", **env).err


def test_a_check_needs_no_server() -> None:
    write("my.yaml", NEW)
    for more in ({}, {"DISPATCHER_REDIS_URL": "redis://127.0.0.1:1/0"}):
        result = run("limits", "check", DISPATCHER_LIMITS_FILE="my.yaml", **more)
        assert (result.code, result.err) == (0, "dispatcher: limits in my.yaml\n")


def test_limits_that_a_newer_program_has_published_are_said_to_be_unreadable(
    redis: Database, env: dict[str, str]
) -> None:
    content = '{"categories": {"errors": {"some_day": true}}}'
    Versions(redis, Keys("dispatcher")).publish(content, "f" * 16, by="eve@far", file="x.yaml", unless=Unless.SAME)
    result = run("limits", "show", **env)
    assert (result.code, result.out) == (78, "")
    assert "limits version 1, published by eve@far, says what this program does not know" in result.err
    assert "limits version 1:1:" in result.err
    assert "categories.errors.some_day: the key is not known" in result.err


# Shadow limits

SHADOWED = """\
global: {limits: [100/30m, {max: 50, window: 30m, shadow: true}]}
categories:
  chatter: {limits: [{max: 2, window: 1d fixed, shadow: true}], per_label: {host: [{max: 3, window: 5m, shadow: true}]}}
"""


def test_shadow_limits_are_shown_with_what_they_would_have_refused(redis: Database, env: dict[str, str]) -> None:
    run("limits", "apply", write("limits.yaml", SHADOWED), **env)
    redis.hset(Keys("dispatcher").shadowed, "category:chatter 2/1d fixed", 7)
    limiter = Limiter(redis, namespace="dispatcher")
    limiter.try_acquire([Scope("shadow:category:chatter", (Limit.parse("2/1d fixed"),))])
    for command in (("limits", "show"), ("status",)):
        shown = json.loads(run(*command, "--json", **env).out)
        (row,) = shown["categories"]["chatter"]["limits"]
        assert row["next_free_s"] == 0
        assert {name: row[name] for name in ("scope", "max", "used", "kind", "shadow", "would_deny")} == {
            "scope": "category:chatter", "max": 2, "used": 1, "kind": "fixed", "shadow": True, "would_deny": 7,
        }  # fmt: skip
        real, together = shown["global"]["limits"]
        assert "shadow" not in real
        assert (together["scope"], together["max"], together["would_deny"]) == ("global", 50, 0)
        lines = [re.sub(r"[█░ ]+", " ", line).strip() for line in run(*command, **env).out.splitlines()]
        assert any("1/2 shadow in 1d fixed 7 over it" in line for line in lines)
        assert any("0/50 shadow in 30m" in line for line in lines)
    assert json.loads(run("limits", "show", "--json", **env).out)["categories"]["chatter"]["per_label"] == {
        "host": ["3/5m shadow"]
    }
    assert "3 shadow in 5m for each host" in limits_shown(env)


def test_shadow_limits_have_sentences() -> None:
    out = run("limits", "check", write("limits.yaml", SHADOWED)).out.splitlines()
    assert (
        out[0]
        == "All events together: at most 100 in any 30 minutes; counted and not enforced: at most 50 in any 30 minutes."
    )
    assert out[1].startswith(
        "chatter: no limit of its own, posted to #notifications; counted and not enforced: at most 2 in each "
        "clock-aligned 24 hours; counted and not enforced: at most 3 in any 5 minutes for each value of the label "
        "host; "
    )
