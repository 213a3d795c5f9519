"""Mistakes one could make in what counts, sets aside and tells of suppressed events."""

from __future__ import annotations

from typing import Final

from tests.mutants.harness import Mutant

_DIGEST: Final = "tests/integration/test_store_digest.py"
_NOTICE: Final = "tests/integration/test_store_notice.py"
_WALK: Final = "tests/property/test_digest_model.py"


def _tally(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"tally: {name}", "lua/include/tally.lua", old, new, tests or (_DIGEST,))


def _tell(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"tell: {name}", "lua/include/tell.lua", old, new, tests or (_DIGEST,))


def _admit(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"tallying: {name}", "lua/include/tallying.lua", old, new, tests or (_DIGEST,))


def _take(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"told: {name}", "lua/include/hand_out.lua", old, new, tests or (_DIGEST,))


def _own(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"own: {name}", "dispatcher/own.py", old, new, tests or (_DIGEST,))


def _policy(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"telling: {name}", "dispatcher/policy.py", old, new, tests or (_DIGEST,))


DIGEST: Final = (
    # Counting
    _tally("only the first of a step is counted", "tally.key, 'count', number)", "tally.key, 'count', 1)"),
    _tally("each suppressed event is the first", "'first', first or now,", "'first', now,"),
    _tally("what came after the last look has no instant", "redis.call('HSETNX', tally.key, 'since', now)", ""),
    _tally("a lone event that was joined stays parked", "redis.call('ZREM', at.parked, lone)", ""),
    _tally("a lone event that was joined stays an event", "redis.call('HDEL', at.events, lone)", ""),
    _tally("a lone event that was joined is not counted", "count(at.totals, 'digested', header.counted, 1)", ""),
    _tally(
        "a lone event that was joined is not on record",
        "{ lone, last .. ' ' .. why }",
        "{ lone .. '?', last .. ' ' .. why }",
    ),
    _tally("a lone event that was joined is not remembered", "if remembered then", "if false then"),
    _tally("a lone event that was joined has no name", "return { name or lone, why }", "return { lone, why }"),
    _tally("samples have no end", "#samples < MOST_SAMPLES", "#samples < 50"),
    _tally("a text is a sample twice", "if sample[1] == text then", "if false then"),
    _tally("growth waits for the close", "elseif edit then", "elseif false then"),
    _tally("growth is edited at once", "math.max(tonumber(edit), at.now)", "at.now"),
    _tally("the first look is late", "(first or at.now) + tally.delay_us)", "at.now + tally.delay_us)"),
    _tally("who is set aside stays leased", "  redis.call('SREM', at.leased, event.id)\n", ""),
    _tally(
        "who is set aside again waits anew",
        "header.lone and at.now + wait_us or at.now + tally.delay_us",
        "at.now + tally.delay_us",
    ),
    _tally(
        "who is set aside again was just suppressed",
        "local first = header.lone or digits(at.now)",
        "local first = digits(at.now)",
    ),
    # In the gate's step
    _admit("nobody is set aside", "if tally.number == 1 and", "if tally.number == 0 and"),
    _admit("one beside an open digest is set aside", "is_open(tally) == false", "true"),
    _admit("one that is dropped is set aside", "only.group.outcome == 'digested'", "true", _NOTICE),
    _admit("what was lost is counted", "if tally and ours[last + i] == 1 then", "if tally then"),
    _admit("samples are of admitted events", "if ended[sample[1]] then", "if true then"),
    _admit("nothing goes back", "if release_slot(KEYS[position], request[1]) == 1 then", "if false then"),
    _admit("nobody wakes for a digest", "at.timers) < before then", "at.timers) < 0 then"),
    # When it is taken
    _take("an edit is looked up", "      header.doubt = nil\n", ""),
    _take("what is looked up is told of anew", "header.doubt and redis.call('HGET', key, 'snap')", "nil"),
    _take("a tally keeps its lone event", "    redis.call('DEL', call.tally .. tally)\n", ""),
    _take("another lone event's tally goes", "'lone') == id then", "'lone') then"),
    # When it has told
    _tell("nothing counts as a notice", "redis.call('HINCRBY', at.totals, 'notices', 1)", ""),
    _tell("what came while it told is lost", "told.ends and total <= told.shown", "told.ends", _DIGEST, _NOTICE),
    _tell("what came while it told is told twice", "'count', total - shown,", "'count', total,"),
    _tell("what was told keeps its samples", "if sample[2] > shown then", "if true then"),
    _tell("what came while it told began before", "since or last, {}", "redis.call('HGET', key, 'first'), {}"),
    _tell("the next may be posted at once", "or at.now + told.window_us", "or at.now"),
    _tell("fixed windows roll", "told.fixed and (math", "false and (math"),
    _tell("the next one takes the same slots", "redis.call('INCR', at.seq), nil, nil", "header.seq, nil, nil"),
    _tell("a failure keeps its channel", "redis.call('HSET', key, 'failed', 1)\n    header.channel = nil", ""),
    _tell("a failure is no more after the next one", "redis.call('HDEL', key, 'failed')", ""),
    _tell("edits follow without a pause", "EDIT_US = 30000000", "EDIT_US = 1000000"),
    _tell("growth while it told waits for the close", "total > told.shown and math.min", "false and math.min"),
    # What it does
    _own("an edit asks for slots", "    if plan.act is Act.EDIT:\n        return ()\n", ""),
    _own("the end takes the slot that is kept", "tells=tally.shown is None)", "tells=True)", _NOTICE),
    _own("the begin takes any slot", "tells=tally.shown is None)", "tells=False)", _DIGEST, _NOTICE),
    _own("what cannot be edited is posted at once", "if quiet_us > 0 else", "if False else"),
    _own("what cannot be edited waits for ever", "tally.first_us + counting.window_us)", "tally.last_us * 2)"),
    _own("nothing is closed", "ends=left_us <= 0)", "ends=False)"),
    _own("a refused edit is tried again", "counting.window_us, shown, ends=is_edit,", "counting.window_us, shown,"),
    _own("whatever cannot be edited pauses", 'case Paused("unknown_method" as code, detail) if is_edit:', "case 0:"),
    _own("a look-up brings a sent event", "if not isinstance(leased, Leased) or leased.tally is None:", "if True:"),
    _own("a tally that is gone is told", "    if not tally.count:\n", "    if False:\n"),
    _own("what is held for nothing stays held", "if leased.held else Slots.KEEP", "if False else Slots.KEEP", _NOTICE),
    # What it is allowed
    _policy("singles take the last slot", "max=longest.max - 1)", "max=longest.max)"),
    _policy("a digest has no window of its own", 'yield Scope(f"digest:{category}"', 'if False: yield Scope(""'),
    _policy("singles take all of the share", "rule.guarantee - (rule.telling is not None)", "rule.guarantee"),
    _policy("the share keeps no slot", "kept = self.kept(category) if tells else None", "kept = None"),
)
