"""Mistakes one could make in what an operator does: explain, cancel, mute."""

from __future__ import annotations

from typing import Final

from tests.mutants.harness import Mutant

_EXPLAINS: Final = "tests/integration/test_explain.py"
_CANCELS: Final = "tests/integration/test_store_parked.py"
_MUTES: Final = "tests/integration/test_mutes.py"


def _explain(name: str, old: str, new: str) -> Mutant:
    return Mutant(f"explain: {name}", "lua/explain.lua", old, new, (_EXPLAINS,))


def _leaving(name: str, old: str, new: str) -> Mutant:
    return Mutant(f"cancel: {name}", "lua/include/leaving.lua", old, new, (_CANCELS,))


def _mute(name: str, old: str, new: str, file: str = "lua/mute.lua") -> Mutant:
    return Mutant(f"mute: {name}", file, old, new, (_MUTES,))


def _cancel(name: str, old: str, new: str) -> Mutant:
    return Mutant(f"cancel: {name}", "lua/cancel.lua", old, new, (_CANCELS,))


OPERATOR: Final = (
    _explain("a job of any queue is ours", "if KEYS[11 + lane] == 'rq:queue:' .. fields[1] then", "if true then"),
    _explain("a finished job waits", "or fields[2] == 'finished'", ""),
    _explain("an entered job waits", "or fields[5]", ""),
    _explain("a key of another type is an obstacle", "redis.pcall('HMGET'", "redis.call('HMGET'"),
    _explain("nobody holds anything", "    facts.owner = holder(id)\n", ""),
    _explain("a line has no scope", "redis.call('HGET', KEYS[10], header.line) or header.line", "header.line"),
    _explain("other lines do not count", "redis.call('ZRANK', call.waits .. facts.scope, header.line) or nil", "0"),
    _explain("nobody is before anybody", "redis.call('ZRANK', call.line .. line, id) or nil", "0"),
    _explain("a cool-down is not told", "redis.call('ZSCORE', KEYS[6], header.channel) or nil", "nil"),
    _explain("a pause is not told", "pause = hash_of(KEYS[7]),", "pause = nil,"),
    _explain("the older part of the record is not read", "for i = 15, 18 do", "for i = 15, 17, 2 do"),
    _explain("what is remembered is not told", "redis.call('ZSCORE', KEYS[11], id) or nil", "nil"),
    _explain("a letter is not told", "  if entry then\n", "  if false then\n"),
    _explain("the payload is left out", "(call.payloads or string.find(id, '^id%-%x+$'))", "false"),
    Mutant(
        "explain: why it waits on a timer is not kept", "lua/settle.lua", "true, event.why_parked", "true", (_EXPLAINS,)
    ),
    Mutant(
        "explain: a death leaves the old reason",
        "lua/include/looking.lua",
        "  header.why = nil\n",
        "",
        (_EXPLAINS,),
    ),
    _cancel("it stays parked", "redis.call('ZREM', at.parked, event.id)", "redis.call('ZCARD', at.parked)"),
    _leaving("it stays on its timer", "redis.call('ZREM', at.timers, id)", "redis.call('ZCARD', at.timers)"),
    _leaving("it stays in its category's line", "    leave_line(at, id, header)\n", ""),
    _leaving(
        "it stays in its channel's line", "redis.call('ZREM', at.line .. line, id)", "redis.call('ZCARD', at.lines)"
    ),
    _leaving("a paused category has no line of its own", "header.entry or 'channel:'", "'channel:'"),
    _explain("a paused category has no line of its own", "header.entry or 'channel:'", "'channel:'"),
    _leaving("an empty line stays", "redis.call('ZREM', at.lines, line)", "redis.call('ZCARD', at.lines)"),
    _leaving("a line that is not empty goes", "if redis.call('EXISTS', at.line .. line) == 0 then", "if true then"),
    _cancel("what is held stays held", "if header.held or (header.attempt or 0) == 0 then", "if false then"),
    _cancel(
        "what may have been posted is not counted", "if header.held or (header.attempt or 0) == 0 then", "if true then"
    ),
    _cancel(
        "the slot of a post of unknown fate goes",
        "unknown > 0 and digits(header.seq) .. '#' .. unknown or digits(header.seq)",
        "digits(header.seq)",
    ),
    _cancel("another event of the same id goes", "or header.seq ~= event.seq", ""),
    _cancel("what is in hands goes", "elseif header.state ~= 'waiting' then", "elseif false then"),
    _cancel("who waits for the slot is not told", "reopen_scope(at, string.sub", "tostring(string.sub"),
    _cancel("the record stays", "redis.call('HDEL', events, event.id)", "redis.call('HLEN', events)"),
    _cancel("it is still counted as parked", "    count(at.totals, 'parked', header.counted, -1)\n", ""),
    _cancel("it is not counted as dropped", "    count(at.totals, 'dropped', header.counted, 1)\n", ""),
    _cancel("it is not remembered", "if event.remember then", "if false then"),
    _cancel("all are remembered", "if event.remember then", "if true then"),
    _cancel("it is not on record", "if #rows > 0 then", "if false then"),
    _mute("what has ended stays", "if until_of(rows[i + 1]) <= now then", "if false then"),
    _mute("what has not ended goes", "if until_of(rows[i + 1]) <= now then", "if true then"),
    _mute("it lives for ever", "  keep_alive(muted, call.for_us)\n", ""),
    _mute("it stays", "redis.call('HDEL', muted, call.category)", "redis.call('HLEN', muted)"),
    _mute("a shorter one wakes nobody", "  open_scope_at(at, scope, now + call.for_us)\n", ""),
    _mute("its end wakes nobody", "  reopen_scope(at, scope)\n", ""),
    _mute("the bell never rings", "timers) < before then", "timers) < 0 then"),
    _mute("nobody is told that it was muted", "    was = 1\n", ""),
    _mute("a take says nothing", "muted = any_muted and", "muted = false and", "lua/take.lua"),
    _mute("the end lies before", 'int(row["until"]) > now_us', 'int(row["until"]) >= now_us', "dispatcher/mutes.py"),
    _mute(
        "what was admitted is suppressed",
        "    if leased.held or leased.attempt or leased.unknown:\n        return None\n    slots",
        "    slots",
        "dispatcher/consequences.py",
    ),
    _mute(
        "its line opens at once",
        'Opening(f"{MUTED_SCOPE}{category}", mute.until_us, 0)',
        'Opening(f"{MUTED_SCOPE}{category}", 0, 0)',
        "dispatcher/dispatch.py",
    ),
    _mute(
        "what defers waits for its category",
        '"scope": f"{MUTED_SCOPE}{leased.event.category}"',
        '"scope": f"category:{leased.event.category}"',
        "dispatcher/store/rows.py",
    ),
    _cancel("nobody is woken", "timers) < before then", "timers) < 0 then"),
    _cancel("somebody is woken for what is no earlier", "timers) < before then", "timers) <= before then"),
)
