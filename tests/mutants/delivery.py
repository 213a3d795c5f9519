"""Mistakes one could make where it is decided what became of a post, and who may post at all."""

from __future__ import annotations

from typing import Final

from tests.mutants.harness import Mutant

_LOOKS: Final = "tests/integration/test_store_reconcile.py"
_PAUSES: Final = "tests/integration/test_store_pause.py"
_READS: Final = "tests/integration/test_slack_history.py"
_ROWS: Final = "tests/integration/test_delivery_table.py"


def _reconcile(name: str, old: str, new: str) -> Mutant:
    return Mutant(f"delivery: {name}", "dispatcher/reconcile.py", old, new, (_LOOKS,))


def _consequences(name: str, old: str, new: str, test: str = _LOOKS) -> Mutant:
    return Mutant(f"delivery: {name}", "dispatcher/consequences.py", old, new, (test,))


def _history(name: str, old: str, new: str) -> Mutant:
    return Mutant(f"delivery: {name}", "dispatcher/slack/history.py", old, new, (_READS,))


def _pause(name: str, old: str, new: str) -> Mutant:
    return Mutant(f"delivery: {name}", "lua/include/pause.lua", old, new, (_PAUSES,))


def _settle(name: str, old: str, new: str, test: str) -> Mutant:
    return Mutant(f"delivery: {name}", "lua/settle.lua", old, new, (test,))


def _lua(part: str, name: str, old: str, new: str, test: str = _LOOKS) -> Mutant:
    return Mutant(f"delivery: {name}", f"lua/{part}.lua", old, new, (test,))


DELIVERY: Final = (
    # What a reading means
    _reconcile("one look is enough", "if now_us < doubt.sent_us + LAST_LOOK * grace_us:", "if False:"),
    _reconcile("what is absent is never posted again", "if leased.resent >= MAX_RESENT or", "if leased.resent >= 0 or"),
    _reconcile("once too often posted again", "leased.resent >= MAX_RESENT", "leased.resent > MAX_RESENT"),
    _reconcile("what is absent gives no slot to its next post", "Slots.HOLD, resent=", "Slots.KEEP, resent="),
    _reconcile("what cannot be read is no copy", "unknown=leased.unknown + 1", "unknown=leased.unknown"),
    _reconcile("on_ambiguous is not asked", "if rule is OnAmbiguous.DEAD_LETTER or", "if"),
    _reconcile(
        "what cannot be read has no end",
        'or leased.attempt >= MAX_ATTEMPTS:\n        detail = f"perhaps posted (',
        ':\n        detail = f"perhaps posted (',
    ),
    _reconcile("a failed reading has no end", "if now_us >= candidate.terms.deadline_us:", "if False:"),
    _reconcile("a reading's 429 is kept to itself", '"reading_us": later.retry_after_us', '"reading_us": None'),
    _reconcile(
        "readings that failed are not counted",
        "looks=doubt.looks + 1, **facts)\n\n\ndef _unreadable",
        "looks=doubt.looks, **facts)\n\n\ndef _unreadable",
    ),
    _reconcile("a reading begins at the last post", "_doubt(each).first_us", "_doubt(each).sent_us"),
    _reconcile(
        "a thread is looked for in the channel",
        "leased.event.thread_ts or doubt.root)",
        "None)",
    ),
    _reconcile("copies are forgotten by what is found", "copies=candidate.leased.unknown", "copies=0"),
    _reconcile(
        "the channel's id is not used",
        "(doubt.channel or candidate.terms.channel,",
        "(candidate.terms.channel,",
    ),
    # What a post means
    _consequences("what is in doubt is not looked up", "looks=0, reached=False", "reached=False"),
    _consequences(
        "a doubt gives its slot back",
        "return settlement(waits, Slots.KEEP, looks=0",
        "return settlement(waits, Slots.RELEASE, looks=0",
    ),
    _consequences(
        "a doubt is waited for from its answer on",
        "Parked(Place.LOOK, Reason.RECONCILE, grace_us, code",
        "Parked(Place.TIMER, Reason.RECONCILE, grace_us, code",
    ),
    _consequences("a refusal forgets what was posted again", "            resent=leased.resent,\n", ""),
    _consequences("a 429 uses an attempt", "Slots.HOLD, attempt=spared, cooldown_us", "Slots.HOLD, cooldown_us", _ROWS),
    _consequences(
        "a pause uses an attempt", "Slots.HOLD, attempt=spared, pause=result", "Slots.HOLD, pause=result", _ROWS
    ),
    _consequences("a failure below Slack is an answer", "reached=not uses_attempt", "reached=True", _PAUSES),
    _consequences("a doubt is an answer", "looks=0, reached=False", "looks=0, reached=True", _PAUSES),
    _consequences(
        "what is rejected keeps its slot",
        "return settlement(letter, Slots.RELEASE, replied=True",
        "return settlement(letter, Slots.KEEP, replied=True",
        _ROWS,
    ),
    _consequences(
        "what was perhaps posted expires",
        "        if leased.unknown:\n            letter",
        "        if False:\n            letter",
    ),
    # What is read
    _history("the first page is all", 'if len(found) == len(wanted) or not data.get("has_more"):', "if True:"),
    _history("fifteen messages are the whole history", "or len(messages) <= SHORT_PAGE", ""),
    _history("anybody's metadata is a mark", "is not None and mark in wanted", "is not None"),
    _history("threads are not read", "if search.thread_ts is not None:", "if False:"),
    _history("ids are not remembered", "            self._ids[channel] = channel_id", "            pass"),
    _history(
        "one page of channels is all",
        "            if not cursor:\n                return Absent()",
        "            if True:\n                return Absent()",
    ),
    _history(
        "a private channel that may not be listed is absent",
        'or (isinstance(answer, Absent) and "private" in types)',
        "or isinstance(answer, Absent)",
    ),
    _history("a person is a channel", "_PERSON.fullmatch(channel)", "False"),
    _history(
        "a 429 on reading has no time",
        'f"Slack limits {method}", retry_after_us, reached=True',
        'f"Slack limits {method}", None, reached=True',
    ),
    _history("a scope that is missing stops all posts", "if code not in _UNREADABLE", "if True"),
    _history(
        "a failure is an answer", "return ReadLater(code, detail)\n", "return ReadLater(code, detail, reached=True)\n"
    ),
    # Pauses
    _pause("four failures are an outage", "OUTAGE = 5", "OUTAGE = 4"),
    _pause("six failures are an outage", "OUTAGE = 5", "OUTAGE = 6"),
    _pause("failures are never forgotten", "  redis.call('PEXPIRE', at.failures, FAILURES_MS)\n", ""),
    _pause("the gap does not grow", "math.min(2 * tonumber(gap), OUTAGE_TO_US)", "tonumber(gap)"),
    _pause("the gap has no end", "math.min(2 * tonumber(gap), OUTAGE_TO_US)", "2 * tonumber(gap)"),
    _pause("every failure lengthens the gap", "    if prober == id then\n      gap", "    if true then\n      gap"),
    _pause(
        "an answer does not reset the failures",
        "local function note_answer(at, id, posted, replied)\n  redis.call('DEL', at.failures)",
        "local function note_answer(at, id, posted, replied)",
    ),
    _pause(
        "a 429 does not reset the failures",
        "local function cool_down(at, channel, span_us, said)\n  redis.call('DEL', at.failures)",
        "local function cool_down(at, channel, span_us, said)",
    ),
    _pause(
        "a 429 does not end an outage",
        "  if kind == 'outage' then\n    end_pause(at, kind)",
        "  if false then\n    end_pause(at, kind)",
    ),
    _pause("any answer ends a cool-down", "(kind == 'cooldown' and prober == id and replied)", "kind == 'cooldown'"),
    _pause(
        "a reading ends a cool-down",
        "(kind == 'cooldown' and prober == id and replied)",
        "(kind == 'cooldown' and prober == id)",
    ),
    _pause("nothing ends a cool-down", "(kind == 'cooldown' and prober == id and replied)", "false"),
    _pause("any answer ends an operator's pause", "(kind == 'operator' and posted)", "kind == 'operator'"),
    _pause("a prober that says nothing is waited for", "  else\n    pass_try(at, id)\n", ""),
    _pause("one channel cools down for all", "is_wide = is_wide or others[i] ~= channel", "is_wide = true"),
    _pause(
        "two channels are no matter of the workspace", "is_wide = is_wide or others[i] ~= channel", "is_wide = false"
    ),
    _pause("a cool-down of readings is one of posts", "if others[i] ~= READING then", "if true then"),
    _pause(
        "the workspace waits for the shorter end",
        "latest = math.max(latest, tonumber(others[i + 1]))",
        "latest = at.now + span_us",
    ),
    _pause("a cool-down takes an operator's place", "if kind ~= 'operator' and (is_wide", "if (is_wide"),
    _pause(
        "in an operator's pause failures are an outage",
        "  elseif kind == 'operator' then\n    return false\n  end",
        "  end",
    ),
    _pause(
        "an outage cuts a cool-down short", "math.max(at.now + OUTAGE_FROM_US, cool_until)", "at.now + OUTAGE_FROM_US"
    ),
    _pause(
        "who tries is not noted",
        "'prober', id, 'probe', digits(now + PROBES_US[kind])",
        "'prober', '', 'probe', digits(now + PROBES_US[kind])",
    ),
    _pause("all try at once", "'prober', id, 'probe', digits(now + PROBES_US[kind])", "'prober', id"),
    _pause("the same pause is told again and again", "if before ~= kind or code ~= said.code then", "if true then"),
    _pause("an end is not told", "  turned[#turned + 1] = { ended = kind }\n", ""),
    _settle("an outage uses attempts up", "event.attempt = event.spared", "event.spared = event.attempt", _PAUSES),
    _settle("a prober that asked nobody is waited for", "  else\n    pass_try(at, event.id)\n  end", "  end", _PAUSES),
    _settle(
        "nobody learns the id of a channel",
        "redis.call('HSET', KEYS[22], channel.name, event.channel_id)",
        "redis.call('HLEN', KEYS[22])",
        _LOOKS,
    ),
    _settle("what is in doubt may expire", "ends = event.doubt and math.max(ends, due) or ends", "ends = ends", _LOOKS),
    _settle("readings do not cool down", "digits(now + event.reading_us), READING", "digits(now), READING", _LOOKS),
    _settle(
        "the answer that came within a cool-down ends it",
        "if cooldown and tonumber(cooldown) <= now then",
        "if cooldown then",
        _PAUSES,
    ),
    _settle(
        "a channel that cooled down takes one at a time for ever",
        "    redis.call('ZREM', keys.cooldowns, channel.name)\n",
        "",
        _PAUSES,
    ),
    # Look-ups that are taken, and what a dead worker leaves
    _lua("take", "readings go on in their cool-down", "return header.doubt and now < read_at", "return false"),
    _lua("take", "a suspect is read in the cool-down", "and not is_too_soon(header_of(timer))\n", "\n"),
    _lua(
        "take",
        "past its deadline it is read in the cool-down",
        "    if is_too_soon(header) then\n",
        "    if false then\n",
    ),
    _lua(
        "include/due",
        "each event has a reading of its own",
        "elseif most > 0 or (place and read[place]) then",
        "elseif most > 0 then",
    ),
    _lua(
        "include/due", "readings of one channel count one by one", "if not (place and read[place]) then", "if true then"
    ),
    _lua(
        "include/due",
        "a reading is never the prober",
        "      if place and is_paused then\n        let_try(pause, id, now)\n      end\n",
        "",
        _PAUSES,
    ),
    _lua(
        "include/due",
        "a channel that cooled down gets all at once",
        "(header.solo or redis.call('ZSCORE', KEYS[29], header.channel))",
        "header.solo",
        _PAUSES,
    ),
    _lua(
        "include/takeover",
        "a dead worker's post is looked up at once",
        "tonumber(header.sent) + at.grace_us)",
        "at.now)",
    ),
    _lua(
        "include/takeover",
        "a dead worker's post is never looked up",
        "header.held, header.doubt = nil, 0",
        "header.held = nil",
    ),
    _lua("include/takeover", "a dead worker's look-up is an orphan", "elseif header.doubt then", "elseif false then"),
    _lua(
        "include/looking",
        "a dead worker's doubt may expire",
        "digits(math.max(instant, tonumber(header.deadline)))",
        "header.deadline",
    ),
    _lua("renew", "a look-up that is given back is an orphan", "elseif header.doubt then", "elseif false then"),
    _lua(
        "include/hand_out",
        "nobody is told the id of the channel",
        "header.doubt and redis.call('HGET', KEYS[30], header.channel) or nil",
        "nil",
    ),
    _lua(
        "take",
        "after a 429 all channels are read at once",
        "local is_slow = now < read_at + COOLED_US",
        "local is_slow = false",
    ),
    _lua("take", "readings are made one by one for ever", "now < read_at + COOLED_US", "now < math.huge"),
    _lua("take", "after a 429 each event is read by itself", " and not read[header.channel]\nend", "\nend"),
)
