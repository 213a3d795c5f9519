"""Mistakes one could make at the door: what is dropped as it is taken, who names it, and what is taken ahead."""

from __future__ import annotations

from typing import Final

from tests.mutants.harness import Mutant

_STORE: Final = "tests/integration/test_store_door.py"
_RIGHTS: Final = "tests/integration/test_door_rights.py"
_NAMES: Final = "tests/unit/test_door.py"
_LOGS: Final = "tests/unit/test_logs.py"
_INTAKE: Final = "tests/integration/test_store_intake.py"
_LOOP: Final = "tests/integration/test_worker_ahead.py"
_STORM: Final = "tests/faults/test_door.py"


def _lua(part: str, name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"door: {name}", f"lua/{part}.lua", old, new, tests or (_STORE,))


def _py(part: str, name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"door: {name}", f"dispatcher/{part}.py", old, new, tests or (_STORE,))


DOOR: Final = (
    # What is refused
    _lua("include/door", "it closes a microsecond too late", "at > now and", "at > now + 1 and"),
    _lua("include/door", "it opens a microsecond too late", "at > now and", "at >= now and"),
    _lua("include/door", "what has room is refused too", "is_known and at > now and", "is_known and"),
    _lua(
        "include/door",
        "a scope of another type breaks the take",
        "pcall(decide, scopes, row, now, free_at)",
        "true, decide(scopes, row, now, free_at)",
    ),
    _lua(
        "include/door",
        "of several pools only the first is asked",
        "type(item) == 'table' and item or { item }",
        "type(item) == 'table' and { item[1] } or { item }",
    ),
    _lua("include/door", "each scope is that of the first key", "KEYS[first + scope]", "KEYS[first + 1]"),
    _lua("include/door", "every category asks for the same", "door.rows[position]", "door.rows[1]"),
    _lua("include/door", "muted categories are dropped", "and not muted(category) and", "and"),
    _lua("include/door", "any mark will do", "'^(%S+) ([01])$'", "'^(%S+) ?([01]?)'"),
    _lua("include/door", "all ids are remembered", "remember = remembered == '1'", "remember = true"),
    _lua("include/door", "no id is remembered", "remember = remembered == '1'", "remember = false"),
    _lua("include/door", "nobody has a name in the books", "configured = named[2]", "configured = true"),
    _lua("include/door", "all are put down to the first limit", "[denial[1]][denial[2]]", "[denial[1]][1]"),
    _lua("include/door", "all are put down to the first scope", "door.told[denial[1]]", "door.told[1]"),
    _lua("include/door", "the instant of the room is not on record", ".. denial[3] ..", ".. '0' .."),
    _lua("include/door", "nobody is told how long", "scope, window, wait, table", "scope, window, '0', table"),
    # How they are taken
    _lua(
        "include/entering",
        "known ids are dropped",
        "if present[i] or dead[i] or entered[id]",
        "if ends[i] then\n      table.insert(ends[i].ids, id)\n    elseif present[i] or dead[i] or entered[id]",
    ),
    _lua(
        "include/entering",
        "an id on the lanes twice is dropped twice",
        "entered[id] = true\n      local ended",
        "local ended",
    ),
    _lua("include/entering", "replayed ones are dropped", "mark and not again and refusal", "mark and refusal"),
    _lua(
        "include/entering",
        "marks are of the job before",
        "marks[2 * n - 1], marks[2 * n]",
        "marks[2 * n - 3], marks[2 * n]",
    ),
    _lua(
        "include/entering",
        "who may not sort drops none",
        "may_sort = marks and not marks.err",
        "may_sort = true",
        _RIGHTS,
    ),
    _lua("include/entering", "nobody may sort", "may_sort = marks and not marks.err", "may_sort = false", _RIGHTS),
    _lua(
        "include/entering",
        "one by one, replayed ones too",
        "mark, again = fields[1], fields[2]",
        "mark = fields[1]",
        _RIGHTS,
    ),
    _lua(
        "include/entering",
        "a job of another type stops the worker",
        "redis.pcall('HMGET', job, 'category', 'replays')",
        "redis.call('HMGET', job, 'category', 'replays')",
        _RIGHTS,
    ),
    _lua("include/entering", "other limits in force close it", "ARGV[2] and not is_stale and", "ARGV[2] and"),
    _lua("include/entering", "any id may be dropped", "door and is_printable(id) and", "door and"),
    _lua(
        "include/entering",
        "the keys are others",
        "refusal(door, mark, 34, is_muted)",
        "refusal(door, mark, 33, is_muted)",
    ),
    _lua("include/entering", "as many are looked at as without", "local LOOKS = 8", "local LOOKS = 1"),
    _lua("include/entering", "more are looked at", "local LOOKS = 8", "local LOOKS = 9"),
    _lua("include/entering", "many more are looked at", "MOST_LOOKS = 1024", "MOST_LOOKS = 1025"),
    _lua("include/entering", "more are handed out than asked for", "popped - gone < room and", ""),
    _lua("include/entering", "one piece is too large", "most - popped, room - popped + gone)", "most - popped)"),
    _lua("include/entering", "duplicates count as gone", "#ids_taken + #duplicates - before", "#ids_taken - before"),
    _lua(
        "include/entering",
        "behind a door hashes stay",
        "      jobs[n] = job\n",
        "      jobs[n] = door and 'rq:job:' or job\n",
    ),
    # The take
    _lua("take", "what is dropped is not received by the books", "}, refused)\n", "}, {})\n"),
    _lua("take", "it is counted where the worker counts", "names = KEYS[34]", "names = KEYS[33]"),
    _lua(
        "take",
        "low has the share of what is handed out",
        "math.min(lows, low_share(looks))",
        "math.min(lows, low_share(room))",
    ),
    _lua(
        "take",
        "it is dropped among the others",
        "limited = KEYS[23], limited_older = KEYS[24], now",
        "limited = KEYS[25], limited_older = KEYS[26], now",
    ),
    _lua(
        "take",
        "nobody hears of what was dropped",
        "refused = #refused > 0 and told_refusals() or cjson.null",
        "refused = cjson.null",
    ),
    _lua("take", "with old ones in hand others come", "(alone or any_old or old_wait)", "(alone or old_wait)"),
    _lua("take", "with old ones waiting others come", "(alone or any_old or old_wait)", "(alone or any_old)"),
    _lua("take", "with a suspect in hand others come", "(alone or any_old or old_wait)", "(any_old or old_wait)"),
    _lua(
        "take",
        "without new ones nothing comes",
        "digits(undecided or (redis.call('GET', KEYS[11]) or 0) + 1)",
        "(undecided and digits(undecided) or cjson.null)",
    ),
    _lua("include/dropping", "very many ids break the script", "first + 999, #ids) do", "first + 9999, #ids) do"),
    _lua(
        "include/dropping",
        "some ids are not remembered",
        "for first = 1, #ids, 1000 do\n    local rows",
        "for first = 1, #ids, 1001 do\n    local rows",
    ),
    _lua("take", "low has no share of what is handed out", "math.min(lows, low_share(room))", "0"),
    _lua("take", "each lane hands out a whole batch", "looks - looked, room - looked + gone", "looks - looked, room"),
    _lua(
        "take", "each lane is looked at as far", "looks - looked, room - looked + gone", "looks, room - looked + gone"
    ),
    # What a job bears
    _lua("enqueue", "no id is to be remembered", "' ' .. string.sub(row, 2, 2) }", "' 0' }", _INTAKE),
    _lua("enqueue", "a job without a category bears one", "first > 3 and {", "true and {", _INTAKE),
    _py(
        "store/enqueueing", "a job called otherwise bears it", "event.id is None or event.id == job_id", "True", _INTAKE
    ),
    _py(
        "store/enqueueing",
        "only chosen ids bear it",
        "event.id is None or event.id == job_id",
        "event.id == job_id",
        _INTAKE,
    ),
    # Who names them
    _py(
        "worker/admission",
        "categories that defer are named",
        "isinstance(verdict, Denied) and each.drops and",
        "isinstance(verdict, Denied) and",
    ),
    _py("worker/admission", "categories that tell are named", " and each.counting is None:", ":"),
    _py(
        "worker/admission",
        "categories with limits for labels are named",
        " and not self._policy.rule(category).per_label:",
        ":",
    ),
    _py(
        "worker/admission",
        "what older limits refused stays named",
        "            self._door.open()\n",
        "            pass\n",
    ),
    _py("worker/admission", "all are known to the limits", "configured=terms.configured)", "configured=True)"),
    _py("worker/door", "very many are named", "known is None and len(self._refusals) >= MOST_CLOSED", "False", _NAMES),
    _py(
        "worker/door",
        "no more than may are named twice",
        "known is None and len(self._refusals) >=",
        "len(self._refusals) >=",
        _NAMES,
    ),
    _py("worker/door", "who has room stays named", "if each.until_s > now_s}", "}", _NAMES),
    _py(
        "worker/door",
        "it ends an instant too late",
        "if now_s >= self._soonest_s:",
        "if now_s > self._soonest_s:",
        _NAMES,
    ),
    _py(
        "worker/door",
        "who is left is named for ever",
        "self._soonest_s = min((each.until_s for each in left.values()), default=math.inf)",
        "pass",
        _NAMES,
    ),
    _py(
        "worker/door",
        "the text is made each time",
        "if self._closed is None and self._refusals:",
        "if self._refusals:",
        _NAMES,
    ),
    _py(
        "worker/door",
        "the text is never made again",
        "if known is None or known.demands != demands:",
        "if False:",
        _NAMES,
    ),
    _py(
        "worker/door",
        "other demands are not noticed",
        "if known is None or known.demands != demands:",
        "if known is None:",
        _NAMES,
    ),
    _py("limiter/calls", "all wait for the first limit", "denier.limits[window - 1]", "denier.limits[0]", _NAMES),
    _py(
        "worker/door", "positions count from nought", "self._refusals.items(), 1)", "self._refusals.items(), 0)", _NAMES
    ),
    _py("worker/door", "one without a name is told", "            if ids\n", "", _NAMES),
    # What the worker does with it
    _py(
        "store/taken",
        "nobody reads what was dropped",
        "closed.read(refused) if closed is not None and refused else []",
        "[]",
    ),
    _py("store/taken", "new ones are old", 'facts["seqs"].count(0)', 'len(facts["seqs"])'),
    _py(
        "store/outbox",
        "what came ahead and was dropped is not told",
        "self.turned_away += taken.turned_away",
        "self.turned_away = taken.turned_away",
    ),
    _py(
        "store/outbox",
        "what is given back is not told",
        "        while self.ahead:\n            self._arrived()\n",
        "        while self.ahead:\n            self._arrived()\n            self.turned_away.clear()\n",
    ),
    _py(
        "store/outbox",
        "repeats are told of the last take alone",
        "self.duplicates += taken.duplicates",
        "self.duplicates = taken.duplicates",
    ),
    _py(
        "store/outbox",
        "a batch that only dropped is none",
        "if ahead.batch or ahead.turned_away or self.ahead:",
        "if ahead.batch or self.ahead:",
    ),
    _py(
        "store/outbox",
        "old ones in hand have no senders",
        "due - taken.old - sum(self._promised)",
        "due - sum(self._promised)",
    ),
    _py("store/outbox", "promises are made twice", "due - taken.old - sum(self._promised)", "due - taken.old"),
    _py("store/outbox", "less than nothing is asked for", "max(0, due - taken.old", "abs(due - taken.old"),
    _py(
        "store/outbox",
        "any number of batches is asked for",
        "len(self._promised) < AHEAD and self._goes_on",
        "self._goes_on",
    ),
    _py("store/outbox", "one batch at a time is asked for", "AHEAD: Final = 2", "AHEAD: Final = 1"),
    _py(
        "worker/loop",
        "it sleeps while a batch is on its way",
        "if taken.turned_away or self._outbox.ahead:",
        "if taken.turned_away:",
        _LOOP,
    ),
    _py(
        "worker/loop",
        "it sleeps after what was dropped",
        "if taken.turned_away or self._outbox.ahead:",
        "if self._outbox.ahead:",
        _LOOP,
    ),
    _py(
        "worker/loop",
        "at its end it tells of nothing",
        "                returned += self._outbox.give_back()\n            self._watch.tell_ended()\n",
        "                returned += self._outbox.give_back()\n",
        _LOOP,
    ),
    _py(
        "worker/outbox_watch",
        "it tells of each again",
        "turned_away, outbox.turned_away = outbox.turned_away, []",
        "turned_away = outbox.turned_away",
        _STORM,
    ),
    _py(
        "logs",
        "a line has another order",
        '{"category": name, **_denial_facts(denied, "dropped", now)}',
        '{**_denial_facts(denied, "dropped", now), "category": name}',
        _LOGS,
    ),
    _py(
        "logs",
        "what is not plain is not told",
        '"event_id", told):\n                return\n',
        '"event_id", told) is not None:\n                return\n',
        _LOGS,
    ),
    _py(
        "line_batch",
        "what is not plain is written",
        "        if not self._is_plain(text.encode()):\n            return False\n",
        "",
        _LOGS,
    ),
    _py(
        "line_batch",
        "each group has one line",
        "for name in names]\n        text",
        "for name in names[:1]]\n        text",
        _LOGS,
    ),
)
