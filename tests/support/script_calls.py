"""The product's scripts as they are called: each call with the database before it, and runs of it with a fault.

Calls are seen where redis-py hands them to a socket, so nothing here depends on which class of ours sends them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import pytest
from redis import Redis
from redis.connection import AbstractConnection, Connection, UnixDomainSocketConnection

from dispatcher.data_files import data_file
from dispatcher.server.scripts import read_script
from tests.support.servers import Database

SCRIPTS: Final = tuple(sorted(path.stem for path in Path(str(data_file("lua", "take.lua"))).parent.glob("*.lua")))

Saved: TypeAlias = Mapping[bytes, tuple[int, bytes]]
"""Of each key its lifetime in ms (0: none), and what DUMP says of it."""


class Call(NamedTuple):
    """One call of a script, and what was stored before it."""

    name: str
    keys: tuple[bytes, ...]
    args: tuple[bytes, ...]
    before: Saved


class Step(NamedTuple):
    """A command of a script: its name, the key that it names first, and what its answer looked like."""

    command: str
    key: str
    answer: str
    changes: bool


@dataclass(frozen=True, slots=True)
class Run:
    """What a script did: its commands in order, and its answer or what it raised."""

    steps: list[Step]
    answer: Any
    raised: str | None

    @property
    def first_change(self) -> int:
        """The position of the first command that changes something, from 1; one behind the last where there is none."""
        return next((n for n, step in enumerate(self.steps, 1) if step.changes), len(self.steps) + 1)

    @property
    def changes(self) -> list[Step]:
        """The commands that were run and change something."""
        return [step for step in self.steps if step.changes and step.answer not in {"error", "injected"}]

    @property
    def shape(self) -> tuple[tuple[str, str], ...]:
        """What tells situations of a script apart: its commands and what their answers looked like."""
        return tuple((step.command, step.answer) for step in self.steps)


# A key that is about to go would be gone before a trial on a slow machine ends.
_SAVE: Final = """
local rows = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local lasts_ms = redis.call('PTTL', key)
  rows[#rows + 1] = key
  rows[#rows + 1] = lasts_ms > 0 and math.max(60000, lasts_ms) or 0
  rows[#rows + 1] = redis.call('DUMP', key)
end
return rows
"""

_RESTORE: Final = """
redis.call('FLUSHALL')
for n, key in ipairs(KEYS) do
  redis.call('RESTORE', key, ARGV[2 * n - 1], ARGV[2 * n])
end
"""

# Not DUMP: a hash that was read meanwhile may be written out in another order. Nor JSON as it is: in which order a
# script writes the fields of an object depends on when its garbage was collected.
_CONTENTS: Final = """
local function in_order(value)
  local object, rest = string.match(value, '^{(.-)}(\\n.*)$')
  local fields = {}
  for field in string.gmatch(object or '', '[^,]+') do
    fields[#fields + 1] = field
  end
  table.sort(fields)
  return object and table.concat(fields, ',') .. rest or value
end
local function pairs_of(rows)
  local found = {}
  for n = 1, #rows, 2 do
    found[#found + 1] = #rows[n] .. ':' .. rows[n] .. '=' .. in_order(rows[n + 1])
  end
  return found
end
local read = {
  string = function(key) return { redis.call('GET', key) } end,
  list = function(key) return redis.call('LRANGE', key, 0, -1) end,
  set = function(key) return redis.call('SMEMBERS', key) end,
  zset = function(key) return pairs_of(redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')) end,
  hash = function(key) return pairs_of(redis.call('HGETALL', key)) end,
  stream = function(key)
    local found = {}
    for n, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do
      found[n] = entry[1] .. table.concat(entry[2], ',')
    end
    return found
  end,
}
local result = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local rows, lengths = read[kind](key), {}
  if kind == 'set' or kind == 'hash' then
    table.sort(rows)
  end
  for n, row in ipairs(rows) do
    lengths[n] = #row
  end
  local lasts = redis.call('PTTL', key) >= 0 and 'for a time' or 'for ever'
  local whole = kind .. lasts .. table.concat(lengths, ',') .. table.concat(rows)
  result[#result + 1] = key
  result[#result + 1] = redis.sha1hex(whole)
end
return result
"""

# The script becomes a function, so that its locals are its own; `redis` is another one to it.
_HEAD: Final = """
local fault, mode = tonumber(table.remove(ARGV, 1)), table.remove(ARGV, 1)
local changing = cjson.decode(table.remove(ARGV, 1))
local steps = {}

local function look_of(answer)
  if type(answer) == 'table' then
    if answer.err then return 'error' end
    if answer.ok then return 'ok' end
    return #answer == 0 and 'none' or #answer == 1 and 'one' or 'many'
  elseif type(answer) == 'number' then
    return answer < 0 and 'below' or answer == 0 and '0' or answer == 1 and '1' or 'more'
  end
  return answer and 'text' or 'nil'
end

local function changes(command, ...)
  if command == 'SORT' then -- a read unless it stores
    for _, word in ipairs({ ... }) do
      if string.upper(tostring(word)) == 'STORE' then return true end
    end
    return false
  end
  return changing[command] == true
end

local function ask(how, command, ...)
  command = string.upper(command)
  local step = { command, tostring((...) or ''), 'error', changes(command, ...) }
  steps[#steps + 1] = step
  if #steps == fault then
    step[3] = 'injected'
    if how == 'pcall' then return { err = 'ERR injected' } end
    error({ err = 'ERR injected' })
  end
  local answer = redis[how](command, ...)
  step[3] = look_of(answer)
  if mode == 'deaf' and step[4] and command ~= 'XADD' then return nil end
  return answer
end

local shadow = setmetatable({
  call = function(...) return ask('call', ...) end,
  pcall = function(...) return ask('pcall', ...) end,
}, { __index = redis })

local ran, answer = pcall(function(redis)
"""
_TAIL: Final = """
end, shadow)
if not ran then
  answer = type(answer) == 'table' and answer.err or tostring(answer)
end
return { ran and 1 or 0, cjson.encode(steps), answer }
"""

_EFFECTS: Final = ("PUBLISH",)
"""Commands that change no key and yet do something for good: what they tell others cannot be taken back."""


class Bench:
    """A server of a test's own, on which recorded calls are run."""

    def __init__(self, client: Redis) -> None:
        self.client: Database = client
        self._ask = {text: client.script_load(text) for text in (_SAVE, _RESTORE, _CONTENTS)}
        self._wrapped: dict[str, str] = {}
        commands = self.client.command()
        changing = {name.upper() for name, facts in commands.items() if "write" in facts["flags"]}
        self._changing = json.dumps(dict.fromkeys([*changing, *_EFFECTS], True))

    def save(self) -> Saved:
        """Everything that is stored."""
        rows = self.client.evalsha(self._ask[_SAVE], 0)
        return {key: (lasts, dump) for key, lasts, dump in zip(rows[::3], rows[1::3], rows[2::3], strict=True)}

    def restore(self, saved: Saved) -> None:
        """What was saved is stored, and nothing else."""
        parts = [part for each in saved.values() for part in each]
        self.client.evalsha(self._ask[_RESTORE], len(saved), *saved, *parts)

    def contents(self) -> dict[str, str]:
        """A digest of what each key holds, whatever the order in which the server keeps it."""
        rows = self.client.evalsha(self._ask[_CONTENTS], 0)
        return {key.decode("utf-8", "replace"): digest for key, digest in zip(rows[::2], rows[1::2], strict=True)}

    def run(self, call: Call, *, args: Sequence[bytes] | None = None, fault: int = 0, deaf: bool = False) -> Run:
        """Run the script of a call on what is stored now.

        With ``fault`` its command of that number raises and is not run. ``deaf``: of what its writes answer it hears
        nothing, but for the id of a new entry of a stream, which only the server knows.
        """
        digest = self._wrapped.get(call.name)
        if digest is None:
            text = f"{_HEAD}{read_script(call.name)}{_TAIL}"
            digest = self._wrapped[call.name] = self.client.script_load(text)
        given = call.args if args is None else args
        control = (str(fault), "deaf" if deaf else "", self._changing)
        answer = self.client.evalsha(digest, len(call.keys), *call.keys, *control, *given)
        ran, steps, said = [*answer, None][:3]
        rows = [Step(*row) for row in json.loads(steps.decode("utf-8", "replace")) or ()]
        if ran == 1:
            return Run(rows, said, None)
        return Run(rows, None, said.decode("utf-8", "replace"))


_MULTI: Final = b"*1\r\n$5\r\nMULTI\r\n"


@dataclass(slots=True)
class Recorder:
    """Keeps the calls of scripts, as long as it is told to by ``recording``."""

    save: Callable[[], Saved]
    calls: list[Call] = field(default_factory=list)
    _names: dict[bytes, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in SCRIPTS:
            self._names[sha1(read_script(name).encode(), usedforsecurity=False).hexdigest().encode()] = name

    def note(self, packed: bytes) -> None:
        """A command is about to leave, or the first one of a transaction."""
        packed = packed.removeprefix(_MULTI)
        if b"EVALSHA" not in packed[:32]:
            return
        words = _words_of(packed)
        name = self._names.get(words[1])
        if name is not None:
            count = int(words[2])
            self.calls.append(Call(name, tuple(words[3 : 3 + count]), tuple(words[3 + count :]), self.save()))


@contextmanager
def recording(bench: Bench) -> Iterator[Recorder]:
    """What is enclosed is recorded: every call of a script of the product to the server of the bench."""
    recorder = Recorder(bench.save)
    for name in SCRIPTS:
        bench.client.script_load(read_script(name))  # so that none is sent a second time, with its text
    with pytest.MonkeyPatch.context() as patch:
        for kind in (Connection, UnixDomainSocketConnection):
            _listen(patch, kind, recorder)
        yield recorder


def _listen(patch: pytest.MonkeyPatch, kind: type[AbstractConnection], recorder: Recorder) -> None:
    send: Any = kind.send_packed_command

    def noted(self: AbstractConnection, command: Any, check_health: bool = True) -> None:  # noqa: ANN401, FBT001, FBT002 - redis-py's own
        recorder.note(command if isinstance(command, bytes) else b"".join(command))
        send(self, command, check_health)

    patch.setattr(kind, "send_packed_command", noted)


def _words_of(packed: bytes) -> list[bytes]:
    """The words of the first command in what goes to the server."""
    head, _, rest = packed.partition(b"\r\n")
    words = []
    for _ in range(int(head[1:])):
        length, _, rest = rest.partition(b"\r\n")
        size = int(length[1:])
        words.append(rest[:size])
        rest = rest[size + 2 :]
    return words
