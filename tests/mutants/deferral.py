"""Mistakes one could make where events are deferred: their lines, the marks of who is deciding, the ways back."""

from __future__ import annotations

from typing import Final

from tests.mutants.harness import Mutant

_DEFERS: Final = "tests/integration/test_store_deferred.py"
_ORDER: Final = "tests/integration/test_store_order.py"
_AHEAD: Final = "tests/integration/test_store_ahead.py"
_PINNED: Final = "tests/integration/test_pinned.py"
_DECIDES: Final = "tests/integration/test_store_decisions.py"
_TAKES: Final = "tests/integration/test_store_take.py"
_LETTERS: Final = "tests/integration/test_store_dead_letters.py"
_BATCHES: Final = "tests/property/test_gate_batches.py"


def _line_up(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"line_up: {name}", "lua/line_up.lua", old, new, tests or (_DEFERS,))


def _deferred(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"deferred: {name}", "lua/include/deferred.lua", old, new, tests or (_DEFERS,))


def _take(name: str, part: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"take deferred: {name}", f"lua/{part}.lua", old, new, tests or (_ORDER,))


def _renew(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"renew deferred: {name}", "lua/renew.lua", old, new, tests or (_ORDER,))


def _pace(name: str, old: str, new: str) -> Mutant:
    return Mutant(f"pace deferred: {name}", "lua/pace.lua", old, new, (_ORDER,))


def _together(name: str, old: str, new: str) -> Mutant:
    return Mutant(f"dropped together: {name}", "lua/include/dropping.lua", old, new, (_DECIDES,))


def _admit(name: str, old: str, new: str) -> Mutant:
    return Mutant(f"dropped together: {name}", "lua/admit.lua", old, new, (_DECIDES,))


def _record(name: str, part: str, old: str, new: str) -> Mutant:
    return Mutant(f"record: {name}", f"lua/{part}.lua", old, new, (_DECIDES,))


def _gate(name: str, old: str, new: str) -> Mutant:
    return Mutant(f"gate in batches: {name}", "lua/include/batch.lua", old, new, (_BATCHES,))


def _core(name: str, module: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"core: {name}", f"dispatcher/{module}.py", old, new, tests)


DEFERRAL: Final = (
    # Standing in line
    _line_up("newcomers overtake", "return head and tonumber(head) < RANKS", "return false and tonumber(head) < RANKS"),
    _line_up(
        "whoever comes stands behind any line",
        "return head and tonumber(head) < RANKS[event.priority] * RANK + event.seq",
        "return head",
    ),
    _line_up(
        "who comes later does not wait for those before",
        " and not earlier_undecided(at, call.owner, event.seq, now)",
        "",
    ),
    _line_up("one more waits than may", "waiting >= event.max and", "waiting > event.max and"),
    _line_up("a head finds its line full", "waiting >= event.max and not header.line", "waiting >= event.max", _ORDER),
    _line_up("what lines up stays leased", "redis.call('SREM', leased, event.id)", "redis.call('SCARD', leased)"),
    _line_up(
        "who lost its lease lines up",
        "if redis.call('SISMEMBER', leased, event.id) == 0 then",
        "if redis.call('HEXISTS', events, event.id) == 0 then",
    ),
    _line_up(
        "a refused event keeps what it was admitted with", "in ipairs(event.release or {})", "in ipairs({})", _ORDER
    ),
    _line_up("a refusal opens the scope at once", "event.scope and now + event.wait_us", "event.scope and now", _ORDER),
    _deferred(
        "a line whose scope has no instant gets none",
        "if instant or not redis.call('ZSCORE', at.lines, 'scope:' .. scope) then",
        "if instant then",
    ),
    _line_up("nobody is woken", "timers) < before then", "timers) < 0 then"),
    _line_up("somebody is woken for what is no earlier", "timers) < before then", "timers) <= before then"),
    _line_up("it is not told what an event waits for", "math.max(0, instant - now)", "0"),
    # Lines and scopes
    _deferred("the order is that of age alone", "digits(header.rank * RANK + header.seq)", "digits(header.seq)"),
    _deferred("the order is that of priority alone", "header.rank * RANK + header.seq)", "header.rank * RANK)"),
    _deferred("priority has no effect", "high = 0, normal = 1, low = 2", "high = 1, normal = 1, low = 1"),
    _deferred("priority is turned round", "high = 0, normal = 1, low = 2", "high = 2, normal = 1, low = 0"),
    _deferred("heads have no rank", "'ZADD', at.waits .. scope, head[2], line", "'ZADD', at.waits .. scope, '0', line"),
    _deferred(
        "a denied line keeps its old scope",
        "scope or redis.call('HGET', at.awaited, header.line) or header.line",
        "redis.call('HGET', at.awaited, header.line) or scope or header.line",
        _ORDER,
    ),
    _deferred("a line that moved waits for both", "redis.call('ZREM', at.waits .. before, line)", "redis.call('PING')"),
    _deferred("a scope that nobody waits for stays", "redis.call('ZREM', at.lines, 'scope:' .. before)", ""),
    _deferred("a line that is empty still waits", "redis.call('HDEL', at.awaited, line)", "redis.call('PING')"),
    _deferred("nobody counts who stands", "redis.call('HINCRBY', at.deferred, header.category, 1)", ""),
    _deferred(
        "nobody counts who leaves", "at.deferred, header.category, -1) == 0", "at.deferred, header.category, 0) == 0"
    ),
    _deferred("a count of nobody stays", "redis.call('HDEL', at.deferred, header.category)", ""),
    _deferred("what stands is not parked", "redis.call('ZADD', at.parked, header.deadline, id)", ""),
    _deferred("what stands is not in the books", "count(at.totals, 'parked', header.counted, 1)", ""),
    _deferred("a scope opens a microsecond late", "tonumber(opened[scope][1]) or", "tonumber(opened[scope][1]) + 1 or"),
    _deferred(
        "a slot freed since the refusal is forgotten",
        "return freed and freed > (mark.freed or 0)",
        "return false",
        _ORDER,
    ),
    _deferred(
        "nobody notes that a slot was freed",
        "redis.call('HSET', at.freed, scope, redis.call('HINCRBY', at.freed, '', 1))",
        "",
        _ORDER,
    ),
    _deferred(
        "an opening that is known is ignored",
        "known and tonumber(opened[scope][1]) or at.now",
        "at.now + 1",
    ),
    _deferred(
        "who waited for a held slot is not told that it was charged",
        "if known and known < math.huge then",
        "if false then",
        _ORDER,
    ),
    # Marks
    _take("nobody says what it is deciding", "take", "\nif undecided or call.undecided then", "\nif false then"),
    _take(
        "what others left is taken ahead",
        "take",
        "local most = call.undecided and 0 or call.new",
        "local most = call.new",
    ),
    _take("heads are taken ahead", "take", "elseif call.undecided then", "elseif false then", _DEFERS),
    _take(
        "a mark counts from the last event",
        "include/hand_out",
        "math.min(undecided or seq, seq)",
        "math.max(undecided or seq, seq)",
        _ORDER,
        _DEFERS,
    ),
    _take(
        "an ahead take forgets the batch before",
        "take",
        "math.min(before.seq, undecided or before.seq)",
        "undecided or before.seq",
    ),
    _take(
        "a mark stays where the first batch of many began",
        "take",
        "digits(undecided or (redis.call('GET', KEYS[11]) or 0) + 1)",
        "digits(call.undecided and call.undecided.seq or undecided or (redis.call('GET', KEYS[11]) or 0) + 1)",
        _AHEAD,
    ),
    _take(
        "what became free before a batch was taken counts for it",
        "take",
        "  freed = freed,\n  nth",
        "  freed = mark and mark.freed or freed,\n  nth",
        _AHEAD,
    ),
    _take("calls in a row are not counted", "take", "(mark and mark.nth or 0) + 1 or 0", "1 or 0", _AHEAD),
    _core(
        "a batch that was overtaken is decided late", "store/outbox", "taken.nth > self._nth and", "False and", _AHEAD
    ),
    _core(
        "what overtook comes first",
        "store/outbox",
        "return self._arrived().and_then(taken)",
        "return taken.and_then(self._arrived())",
        _AHEAD,
    ),
    _core("each of several answers is waited for anew", "pinned", "            self._give_up_late()\n", "", _PINNED),
    _core("an answer that is read late is lost", "pinned", "max(0.0, timeout_s - waited_s)", "-1.0", _PINNED),
    _core("who is in a hurry waits on", "pinned", "        self._timeout_s = timeout_s\n        ", "        ", _PINNED),
    _core(
        "who is in a hurry waits on open connections",
        "pinned",
        "        self._distrust()  # a conn",
        "        # a conn",
        _PINNED,
    ),
    _core(
        "while others are read ahead nobody hears that something waits",
        "store/outbox",
        "self._goes_on = self._goes_on and taken.undecided is not None",
        "self._goes_on = True",
        _AHEAD,
    ),
    _core(
        "once something waited nothing is read ahead",
        "store/outbox",
        "self._nth, self._goes_on = 0, True",
        "self._nth = 0",
        _AHEAD,
    ),
    _core(
        "calls of before are counted",
        "store/outbox",
        "self._nth, self._goes_on = 0, True",
        "self._goes_on = True",
        _AHEAD,
    ),
    _deferred("a mark stays for ever", "redis.call('HDEL', at.deciding, owner)", "redis.call('PING')", _ORDER),
    _deferred("a worker waits for itself", "if rows[i] ~= owner and tonumber", "if tonumber"),
    _deferred("who is slow holds up all", "<= now and mark.ends > now then", "<= now then"),
    _deferred("who is slow is waited for too long", "ORDER_US = 1000000", "ORDER_US = 1000001"),
    _deferred("a mark is waited for once it is over", "ends > now then", "ends >= now then"),
    _deferred("earlier events wait for later ones", "if mark.seq < seq then", "if true then"),
    _deferred(
        "of several marks the first is waited for",
        "math.max(wait_until or 0, mark.ends)",
        "math.min(wait_until or mark.ends, mark.ends)",
        _ORDER,
    ),
    _take(
        "heads overtake what is being decided",
        "include/due",
        "if is_behind(header.seq) or not",
        "if false or not",
        _DEFERS,
        _ORDER,
    ),
    _take(
        "a batch asked for ahead forgets what became free",
        "take",
        "freed = mark and math.min(before.freed, freed) or freed,",
        "freed = freed,",
    ),
    _take(
        "what became free is forgotten with a batch asked for ahead",
        "include/deferred",
        "if not goes_on then",
        "if true then",
    ),
    _take("who is behind is not told when to come", "include/again", "behind or math.huge", "math.huge", _DEFERS),
    _take("who has decided wakes nobody", "take", "if mark and due == 0", "if false and due == 0"),
    _take(
        "who has decided wakes others for what is its own",
        "take",
        "if mark and due == 0 and",
        "if mark and",
        _ORDER,
    ),
    _pace(
        "a later event goes before one that is being decided",
        "channel.max and earlier_undecided",
        "false and earlier_undecided",
    ),
    _pace("a channel without pace waits for decisions", "(channel.max and earlier_undecided", "(earlier_undecided"),
    _pace(
        "what was admitted is still in its category's line",
        "event.category, channel.name, nil, nil",
        "event.category, channel.name, header.line, nil",
    ),
    # Heads
    _take(
        "the entry of heads that were taken is not busy",
        "take",
        "redis.call('ZADD', lines, 'XX', 'inf', entry)",
        "",
        _ORDER,
    ),
    _take(
        "more heads are taken than there is room",
        "take",
        "known and math.max(known[2], 1) or 1)",
        "known and due or due)",
        _ORDER,
    ),
    _take("heads are taken one by one", "take", "known and math.max(known[2], 1) or 1)", "1)", _ORDER),
    _take(
        "heads are not to be decided",
        "include/due",
        "    unpark(id, header, payload)\n    to_decide_again(header.seq)",
        "    unpark(id, header, payload)",
        _ORDER,
        _DEFERS,
    ),
    _take("nobody notes whose heads were taken", "take", "heads_of[#heads_of + 1] = scope", "", _DEFERS),
    _take(
        "what expires in a line is still counted",
        "include/leaving",
        "    leave_line(at, id, header)\n",
        "    redis.call('ZREM', at.line .. header.line, id)\n",
        _DEFERS,
    ),
    _take(
        "a line of a category expires as one of a channel",
        "include/leaving",
        "elseif header.line then",
        "elseif false then",
        _DEFERS,
    ),
    # Deaths and ways back
    _take(
        "a head's death loses its place",
        "include/takeover",
        "elseif header.line and header.deaths < SUSPECT then",
        "elseif false then",
    ),
    _take(
        "a suspect stands in line again",
        "include/takeover",
        "elseif header.line and header.deaths < SUSPECT then",
        "elseif header.line then",
        _DEFERS,
    ),
    _take(
        "a dead worker is deciding for ever",
        "include/takeover",
        "  decided(at, owner)\n",
        "",
        _DEFERS,
        _ORDER,
    ),
    _take(
        "nobody knows that a dead worker's head was taken",
        "include/takeover",
        "      header.takes = (header.takes or 1) + 1\n",
        "",
    ),
    _renew(
        "a head that is given back loses its place",
        "if header.line and not header.state then",
        "if false then",
        _DEFERS,
    ),
    _renew("nobody knows that a head was taken", "header.takes = (header.takes or 1) + 1 -- it", "-- it"),
    _renew("the lease of the old name stays", "redis.call('ZREM', KEYS[2], owner)", ""),
    _renew(
        "the events of the old name do not move",
        "'SUNIONSTORE', KEYS[3], KEYS[3], call.leased",
        "'SUNION', KEYS[3], call.leased",
    ),
    _renew("the events of the old name stay there too", "      redis.call('DEL', call.leased .. owner)\n", ""),
    _renew("the mark of the old name stays", "      decided(at, owner)\n", ""),
    _renew("the mark of who gives back stays", "  decided(at, call.owner)\n", ""),
    Mutant(
        "settle: a slot that comes back wakes no line",
        "lua/settle.lua",
        "      if release_slot(KEYS[scope], event.slot) == 1 then",
        "      if release_slot(KEYS[scope], event.slot) == 2 then",
        (_DEFERS,),
    ),
    # Dropped together
    _together("counts are shifted by one between groups", "last = last + group.count", "last = last + group.count - 1"),
    _together(
        "each group begins with the first", "for n = last + 1, last + group.count do", "for n = 1, group.count do"
    ),
    _together("what was lost is settled", "if ours[n] == 1 then", "if true then"),
    _together(
        "what was lost is counted",
        "group.configured), #group.ids)",
        "group.configured), group.count or #group.ids)",
    ),
    _together("nothing is remembered", "if group.remember then", "if false then"),
    _together("all are remembered", "if group.remember then", "if true then"),
    _together("the first group is remembered for others", "remember(at, group.ids)", "remember(at, groups[1].ids)"),
    _together("what was dropped stays leased", "redis.call('SREM', at.leased, unpack(gone))", ""),
    _together("what was dropped stays an event", "redis.call('HDEL', at.events, unpack(gone))", ""),
    _admit("all are of the first kind", "= call.kind[n], verdicts[n]", "= call.kind[1], verdicts[n]"),
    _admit("others than those that were lost are told", "lost[#lost + 1] = places[n]", "lost[#lost + 1] = n"),
    _admit(
        "a refusal is put down to the first window", "[tonumber(scope)][tonumber(window)]\n", "[tonumber(scope)][1]\n"
    ),
    _admit("a refusal is put down to the first scope", "call.told[tonumber(scope)]", "call.told[1]"),
    # The record
    _record("what a limit suppressed is not written", "settle", "if #limited > 0 then", "if false then"),
    _record("what else ended is not written", "settle", "if #others > 0 then", "if false then"),
    _record("all are of one kind", "settle", "event.limited and limited or others", "others"),
    _record(
        "the kinds are mixed up",
        "settle",
        "record_decisions(KEYS[15], KEYS[16], limited",
        "record_decisions(KEYS[17], KEYS[18], limited",
    ),
    _record("it only grows", "include/decisions", "if held > 0 and 2 * held + #rows > max then", "if false then"),
    _record("it holds one too many", "include/decisions", "+ #rows > max then", "+ #rows > max + 2 then"),
    _record(
        "the older part is never dropped",
        "include/decisions",
        "redis.call('RENAME', present, older)",
        "redis.call('COPY', present, older, 'REPLACE')",
    ),
    _record(
        "the present part is dropped",
        "include/decisions",
        "redis.call('RENAME', present, older)",
        "redis.call('DEL', present)",
    ),
    _record("it has no lifetime", "include/decisions", "redis.call('PEXPIRE', present, DECISIONS_MS)", ""),
    _record(
        "a duplicate hides what became of the first", "include/entering", "if not is_decided(id) then", "if true then"
    ),
    _record("duplicates are not written", "include/entering", "if not is_decided(id) then", "if false then"),
    # The gate: whole batches, and what is ahead
    _gate(
        "a refusal holds after others were charged",
        "if row and refused_after[row] == charged then",
        "if row and refused_after[row] then",
    ),
    _gate("charges are not counted", "        charged = charged + 1\n", ""),
    _gate(
        "who is known is refused as others of its kind",
        "local row = call.fresh and ids and of[n]",
        "local row = ids and of[n]",
    ),
    _gate("a refusal is that of another kind", "verdicts[n] = refused[row]", "verdicts[n] = denial"),
    _gate("what is ahead is open now", "math.max(at, now), at > now", "now, at > now"),
    _gate("what is ahead opened in the past", "math.max(at, now), at > now", "at, at > now"),
    _gate("there is room ahead before it opens", "at > now and 0 or", "false and 0 or"),
    _gate(
        "the widest window says the room ahead", "room = math.min(room, window[MAX]", "room = math.max(0, window[MAX]"
    ),
    _gate("held slots have no part in the room ahead", "    SLOTS.look(scope)\n", "    scope.live = 0\n"),
    # The core
    _core(
        "an outcome is told before it is durable",
        "dispatch",
        "        applied = self.outbox.settle(",
        "        self.observer.settled(settlements)\n        applied = self.outbox.settle(",
        _DECIDES,
    ),
    _core("what was lost is told as settled", "dispatch", "strict=True) if done])", "strict=True)])", _DECIDES),
    _core(
        "those who may go are dropped on the way",
        "dispatch",
        "not in newcomers or each.leased.id in going]",
        "not in newcomers]",
        _DEFERS,
    ),
    _core(
        "nobody stands behind others",
        "consequences",
        "    return Deferral(candidate, policy.line(leased.event), rule.max_parked, counting=counting)\n",
        "    return None\n",
        _DEFERS,
    ),
    _core(
        "an admitted event stands in line again",
        "consequences",
        "or leased.line or leased.held or leased.attempt or",
        "or leased.line or",
        _ORDER,
    ),
    _core(
        "an event ends with a slot that nothing was posted on",
        "consequences",
        "not leased.held and (leased.unknown or leased.attempt)",
        "leased.unknown or (leased.attempt and not leased.held)",
        "tests/unit/test_policy.py",
    ),
    _core(
        "an admitted event waits as long as a held slot may",
        "consequences",
        "min(verdict.retry_after_us, verdict.limit.window_us)",
        "verdict.retry_after_us",
        "tests/integration/test_store_endurance.py",
    ),
    _core(
        "a worker comes back under its old name",
        "store/outbox",
        'self.owner = f"{self._name}/{self._names}"',
        "self.owner = self._name",
        _DEFERS,
    ),
    _core(
        "what was taken ahead is forgotten by who comes back",
        "store/outbox",
        "        self._await_ahead()\n        self._names += 1\n",
        "        self._names += 1\n",
        _ORDER,
    ),
    _core(
        "old events are taken ahead of",
        "store/outbox",
        "not taken.suspended and taken.undecided is not None",
        "not taken.suspended",
        _ORDER,
    ),
    _core(
        "what was lost is told of the next one",
        "worker/admission",
        'n - 1 for n in facts["lost"]',
        'n for n in facts["lost"]',
        _DECIDES,
    ),
    _core(
        "what was lost is told as dropped",
        "dispatch",
        "for place in sorted(answer.lost)])",
        "for place in ()])",
        _DECIDES,
    ),
    _core(
        "who came back is dropped without a look at its slots",
        "consequences",
        "case OnLimit.DROP if leased.is_fresh:",
        "case OnLimit.DROP:",
        _TAKES,
    ),
    _core(
        "a replayed event is dropped", "consequences", "if leased.replays or leased.tally", "if leased.tally", _LETTERS
    ),
    _core(
        "a refused head keeps what it was admitted with",
        "store/rows",
        "if leased.takes > 1:",
        'if leased.takes > 9 and "scope" in row:',
        _ORDER,
    ),
)
