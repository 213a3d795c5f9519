"""Mistakes one could make where limits change: publishing, and what scripts make of a version that is not in force."""

from __future__ import annotations

from typing import Final

from tests.mutants.harness import Mutant

_CHANGE: Final = ("tests/integration/test_limits_change.py",)
_STORE: Final = ("tests/integration/test_store_versions.py",)
_FLEET: Final = ("tests/faults/test_reload.py",)


def _publish(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"publish: {name}", "lua/publish.lua", old, new, tests or _STORE)


def _stale(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"stale limits: {name}", file, old, new, tests or _CHANGE)


def _python(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"versions: {name}", f"dispatcher/{file}", old, new, tests or _CHANGE)


VERSIONS: Final = (
    # Telling a call of another version
    _stale("nobody is told", "lua/include/version.lua", "in_force ~= named", "false"),
    _stale(
        "limits that were lost count as those of the call",
        "lua/include/version.lua",
        "(redis.call('GET', key) or '')",
        "(redis.call('GET', key) or named)",
    ),
    _stale(
        "the gate decides all the same",
        "lua/admit.lua",
        "local is_stale = stale(KEYS[#call.scopes + 8], call.version)",
        "local is_stale = nil",
    ),
    _stale(
        "newcomers and refused ones are lined up all the same",
        "lua/line_up.lua",
        "local is_stale = stale(KEYS[13], call.version)",
        "local is_stale = nil",
    ),
    _stale(
        "posts start all the same",
        "lua/pace.lua",
        "local is_stale = stale(KEYS[14], call.version)",
        "local is_stale = nil",
    ),
    _stale(
        "what was found out by older limits opens scopes",
        "lua/take.lua",
        "version ~= call.version",
        "false",
    ),
    _stale(
        "the line of a channel waits for the pace of before",
        "lua/settle.lua",
        "if is_stale and (tonumber(",
        "if false and (tonumber(",
    ),
    _stale(
        "a line that waits for a post is opened",
        "lua/settle.lua",
        "channel.line_name) or nil) or math.huge) < math.huge",
        "channel.line_name) or nil) or math.huge) <= math.huge",
        *_CHANGE,
    ),
    _stale(
        "a refusal by older limits keeps its instant",
        "lua/settle.lua",
        "is_limited and is_stale and now or math.max(now",
        "math.max(now",
    ),
    _stale(
        "a retry goes at once when limits change",
        "lua/settle.lua",
        "is_limited and is_stale and now or",
        "is_stale and now or",
    ),
    # Publishing
    _publish("what is in force already is a new version", "call.unless == 'known' and known", "false"),
    _publish(
        "an older content is put in force at a start",
        "call.unless == 'known' and known",
        "call.unless == 'never' and known",
    ),
    _publish("whoever joins publishes", "call.unless == 'any' or", "false or"),
    _publish("a name of which nothing is known is in force", "if is_kept and (", "if in_force and ("),
    _publish("a number is used again", "(tonumber(newest) or 0) + 1", "(tonumber(newest) or 1)"),
    _publish(
        "a version is its number alone",
        "string.format('%d-%s', number, call.digest)",
        "string.format('%d-%s', number, 'x')",
    ),
    _publish("all versions are kept", "redis.call('HDEL', files, number - KEPT)", ""),
    _publish("one version too few is kept", "number - KEPT)", "number - KEPT + 1)"),
    _publish("one digest too few is known", "-REMEMBERED - 1)", "-REMEMBERED)"),
    _publish("what waits goes on waiting", "redis.call('ZADD', lines, digits(now), entry)", ""),
    _publish("a line that waits for a post is opened", "'(' .. digits(now), '(inf')", "'(' .. digits(now), 'inf')"),
    _publish(
        "who waits on a timer for a limit goes on waiting", "redis.call('ZADD', timers, digits(now), id)", "", *_CHANGE
    ),
    _publish("every timer is due", "if why and string.find(why[1], '^limit:') then", "if why then", *_CHANGE),
    _publish("nobody is woken", "math.max(1, math.min(redis.call('ZCARD', KEYS[7]), 16))", "0"),
    # What is held by limits that have changed
    _stale("what was held stays", "lua/include/holds.lua", "release_slot(prefix .. name, event.slot)", ""),
    _stale(
        "what is held still is given back", "lua/include/holds.lua", "if not own[prefix .. name] then", "if true then"
    ),
    _stale("an end gives nothing back", "lua/settle.lua", "    let_go(header, event, call.scope)\n", ""),
    _stale("a start gives nothing back", "lua/pace.lua", "      let_go(header, event, call.scope)\n", ""),
    # The core and the worker
    _python(
        "what was refused is forgotten",
        "dispatch.py",
        "rules.again([*admitted, *(each.candidate for each in refused)], ended)",
        "rules.again(admitted, ended)",
    ),
    _python("what was admitted is forgotten", "dispatch.py", "undecided = rules.again(admitted)", "undecided = []"),
    _python(
        "a post is settled by the pace by which it was started",
        "dispatch.py",
        "rules.at_pace(each, self.policy) for each in settlements",
        "*settlements",
    ),
    _python("what was admitted counts as new", "consequences.py", "each._replace(takes=each.takes + 1)", "each"),
    _python(
        "openings of older limits are told",
        "store/outbox.py",
        '        self._version, self._bounds = {"version": version}, bounds\n        self._opened = {}\n',
        '        self._version, self._bounds = {"version": version}, bounds\n',
    ),
    _python(
        "an idle worker does not look",
        "worker/loop.py",
        "                self._limits.follow(taken.version)\n",
        "",
        *_FLEET,
    ),
    _python("a hangup is not heard", "worker/loop.py", "        self._rereads = True\n", "", *_FLEET),
    _python(
        "a file with faults ends the worker",
        "app/following.py",
        "list(error.problems))\n            return\n",
        "list(error.problems))\n            raise\n",
        *_FLEET,
    ),
    _python(
        "the outbox asks for no version",
        "app/following.py",
        "        self._outbox.follow(name, policy.dead_letters)\n",
        "",
        "tests/integration/test_worker_ahead.py",
    ),
    _python(
        "what was lost is not published again",
        "app/following.py",
        "in_force(self._versions) or self._revive()",
        "in_force(self._versions) or self._followed",
        *_FLEET,
    ),
)
