"""Runs scripts on Redis over connections without hidden retries; an outage and a refusal become errors of ours.

Scripts run over connections of our own that stay with who calls again and again: one from redis-py's pool costs more
than an answer. They are made as the pool of a client makes its own, and are none of it: what an application bounded for
itself (``max_connections``) is left to it.
"""

from __future__ import annotations

import _thread
import math
import os
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1
from types import TracebackType
from typing import Any, Final, Self, TypeAlias
from weakref import WeakKeyDictionary, WeakSet, ref

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import (
    BusyLoadingError,
    ClusterError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import TimeoutError as Unanswered
from redis.retry import Retry

from dispatcher.errors import ConfigError, GateUnavailable
from dispatcher.jsonio import encode
from dispatcher.server.error_words import error_code, error_text, outage_words, refusal_words, refused_login
from dispatcher.server.scripts import read_script

Client: TypeAlias = redis.Redis

_AWAY: Final = (
    Unreachable,
    Unanswered,
    BusyLoadingError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
    ClusterError,
    RedisClusterException,
)
_AWAY_CODES: Final = ("MISCONF", "BUSY", "NOREPLICAS", "UNBLOCKED", "OOM", "READONLY", "LOADING", "CLUSTERDOWN")
_DEFECTS: Final = ("user_script:", "Error compiling script", "Error running script")

TRUSTED_S: Final = 0.05
"""A connection that was idle for longer is looked at before it is used: the server may have closed it."""

KEPT_S: Final = 30.0
"""A connection that nobody has needed for so long is closed when another one comes back."""

_LATE_S: Final = 0.5
"""So long after its command was sent an answer is read late: its beginning has to be there by then."""

_LOOK_AGAIN_S: Final = 1.0
"""Who waits for a connection looks again by itself: one whose caller was interrupted comes back to nobody."""

_NOT_SHARED: Final = frozenset(
    {"maint_notifications_config", "maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler"}
)
"""Settings of a connection by which the server's notices reach the pool that it belongs to."""


def shorten_timeout(client: Client, timeout_s: float) -> None:
    """From now on a script of this client waits no longer than this for its answer; for the last steps of a stop."""
    pinned(client).shorten_timeout(timeout_s)


class _Translation:
    """A context that may raise another error for one that ended it. A generator takes four times as long."""

    __slots__ = ("_translate",)

    def __init__(self, translate: Callable[[BaseException], None]) -> None:
        """``translate`` raises the other error where there is one."""
        self._translate = translate

    def __enter__(self) -> None:
        """Nothing is to be done."""

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if failure is not None:
            self._translate(failure)


def translate_outages() -> _Translation:
    """Translates what means that the server is away, full or read-only into ``GateUnavailable``; all else passes."""
    return _Translation(_raise_outage)


def _raise_outage(failure: BaseException) -> None:
    if isinstance(failure, _AWAY) or (isinstance(failure, ResponseError) and error_code(failure) in _AWAY_CODES):
        raise GateUnavailable(outage_words(failure)) from failure


def ping(client: Client) -> None:
    """Return where the server can be read: one whose disk is full refuses PING, and answers what only reads."""
    try:
        client.ping()
    except ResponseError as failure:
        if error_code(failure) != "MISCONF":
            raise


def server_us(client: Client) -> int:
    """The present instant by the server's clock, in microseconds. Raises ``GateUnavailable``."""
    with translate_outages():
        seconds, micros = client.time()
    return int(seconds) * 1_000_000 + int(micros)


def is_full(error: BaseException) -> bool:
    """Whether a server without room in its memory is behind a ``GateUnavailable`` or ``ConfigError``."""
    return isinstance(error.__cause__, RedisError) and error_code(error.__cause__) == "OOM"


def is_answer_missing(error: GateUnavailable) -> bool:
    """Whether the server may have done what it was asked for: it answered no error, and there was a connection."""
    cause = error.__cause__
    return not isinstance(cause, ResponseError) and " connecting to " not in str(cause)


def translate_refusals(client: Client | redis.asyncio.Redis | None = None) -> _Translation:
    """Translates what a server that answers will not do for us into ``ConfigError``; a defect in a script passes.

    The message names the server of ``client``, and none of its secrets.
    """

    def translate(failure: BaseException) -> None:
        if isinstance(failure, RedisError) and not error_text(failure).startswith(_DEFECTS):
            raise ConfigError(refusal_words(failure, client)) from failure
        if isinstance(failure, GateUnavailable) and (login := refused_login(failure)) is not None:
            raise ConfigError(refusal_words(login, client)) from failure

    return _Translation(translate)


class Script:
    """One Lua script on one server: EVALSHA, sent again as a whole when the server forgot it."""

    def __init__(self, client: Client, name: str, *, within_s: float | None = None) -> None:
        """``within_s`` bounds a call as a whole, whatever it waits for; without it the client's time-outs count."""
        self._client = client  # the connections last as long as it
        self._pinned = pinned(client)
        self._within_s = within_s
        self._text = read_script(name)
        self._digest = digest_of(self._text)

    def __call__(self, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:  # noqa: ANN401 - what Lua returns
        """Run it; raises ``GateUnavailable`` when the server is away."""
        return self.ask(keys, args)()

    def ask(self, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Callable[[], Any]:
        """Send the call; what is returned waits for its answer, once. Both raise as a call."""
        ends_s = self._end()
        with translate_outages():
            asked = self._pinned.send("EVALSHA", self._digest, len(keys), *keys, *args, ends_s=ends_s)

        def answer() -> Any:  # noqa: ANN401 - what Lua returns
            is_late = ends_s is not None and time.monotonic() > ends_s  # the caller did other things until now
            with translate_outages():
                try:
                    return asked.answer()
                except NoScriptError:
                    again_s = self._end() if is_late else ends_s
                    return self._pinned.execute("EVAL", self._text, len(keys), *keys, *args, ends_s=again_s)

        return answer

    def _end(self) -> float | None:
        return None if self._within_s is None else time.monotonic() + self._within_s


@cache
def digest_of(text: str) -> str:
    """By which a server knows a script."""
    return sha1(text.encode(), usedforsecurity=False).hexdigest()


class ClusterScript:
    """One Lua script on a cluster, whose client finds the node by the keys."""

    def __init__(self, client: RedisCluster, name: str) -> None:
        self._script = client.register_script(read_script(name))

    def __call__(self, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:  # noqa: ANN401 - what Lua returns
        """Run it; raises ``GateUnavailable`` when the server is away."""
        with translate_outages():
            return self._script(keys, args)


def script_of(client: Client | RedisCluster, name: str) -> Script | ClusterScript:
    """The script for whichever client this is."""
    return ClusterScript(client, name) if isinstance(client, RedisCluster) else Script(client, name)


class JsonScript:
    """A script that takes one JSON object; ``clock`` gives its ``now`` in place of the server's (for tests)."""

    def __init__(self, client: Client, name: str, clock: Callable[[], int] | None = None) -> None:
        self._script = Script(client, name)
        self._clock = clock

    def __call__(self, keys: Sequence[str], call: Mapping[str, Any]) -> Any:  # noqa: ANN401 - what Lua returns
        """Run it; raises ``GateUnavailable`` when the server is away."""
        return self.ask(keys, call)()

    def ask(self, keys: Sequence[str], call: Mapping[str, Any], *more: str | bytes) -> Callable[[], Any]:
        """Send the call, and ``more`` arguments. What is returned waits for its answer, once; both raise as a call."""
        facts = call if self._clock is None else {"now": self._clock(), **call}
        return self._script.ask(keys, [encode(facts), *more])


def settings_of(pool: Any) -> dict[str, Any]:  # noqa: ANN401 - untyped in redis-py, and of several kinds
    """With what a connection like those of the pool is made, outside of it; answers are the old protocol's."""
    settings = {name: value for name, value in pool.connection_kwargs.items() if name not in _NOT_SHARED}
    return {**settings, "protocol": 2}


@dataclass(slots=True)
class _Bound:
    """The instant at which all waiting on a connection ends; None where the socket's own time-out counts."""

    ends_s: float | None = None
    socket: socket.socket | None = None
    """The one that is bound, as it was opened."""


_WOULD_WAIT: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _BoundSocket:
    """A socket that waits until an instant, however many pieces come and go before it."""

    __slots__ = ("_bound", "_socket")

    def __init__(self, plain: socket.socket, bound: _Bound) -> None:
        self._socket = plain
        self._bound = bound

    def sendall(self, data: bytes) -> None:
        try:
            if not isinstance(self._socket, ssl.SSLSocket):  # counts its time-out over all pieces
                self._set_timeout()
                self._socket.sendall(data)
                return
            left = memoryview(data)
            while left:
                self._set_timeout()
                left = left[self._socket.send(left) :]
        except _WOULD_WAIT as error:
            raise self._over(error) from error

    def recv(self, *arguments: int) -> bytes:
        self._set_timeout()
        try:
            return self._socket.recv(*arguments)
        except _WOULD_WAIT as error:
            raise self._over(error) from error

    def recv_into(self, *arguments: Any) -> int:  # noqa: ANN401 - as of a socket
        self._set_timeout()
        try:
            return self._socket.recv_into(*arguments)
        except _WOULD_WAIT as error:
            raise self._over(error) from error

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - all else is as it was
        return getattr(self._socket, name)

    def _set_timeout(self) -> None:
        if (ends_s := self._bound.ends_s) is not None:
            left_s = ends_s - time.monotonic()
            self._socket.settimeout(0.0 if left_s < 0 else left_s if left_s < math.inf else None)

    def _over(self, error: OSError) -> OSError:
        """What a socket raises that has no more time: another error than one that was told never to wait."""
        return error if self._bound.ends_s is None else TimeoutError("the time is over")


@cache
def _bounded(kind: type[Any]) -> type[Any]:
    """A kind of connection whose sockets keep to the bound that it is given."""

    class Bounded(kind):  # type: ignore[misc] # known at run time alone
        bound: _Bound

        def _connect(self) -> Any:  # noqa: ANN401 - untyped in redis-py
            opened = self.bound.socket = super()._connect()
            return _BoundSocket(opened, self.bound) if isinstance(opened, socket.socket) else opened

    return Bounded


_ONCE: Final = Retry(NoBackoff(), 0)


@dataclass(slots=True, weakref_slot=True, eq=False)
class Pin:
    """A connection of our own, not open yet."""

    connection: Any  # redis-py's connection, of whatever class the pool makes
    generation: int = 0
    used_s: float = 0.0
    bound: _Bound = field(default_factory=_Bound)

    @classmethod
    def like(cls, pool: Any) -> Self:  # noqa: ANN401 - as settings_of
        """One like those of the pool, outside of it."""
        return cls(_bounded(pool.connection_class)(**settings_of(pool)))

    def open(self, ends_s: float | None) -> None:
        """Connect, with all that belongs to it; where there is an end, once and until then."""
        connection, own_s = self.connection, self.connection.socket_timeout
        connection.bound = self.bound
        if ends_s is not None:
            left_s = max(ends_s - time.monotonic(), 0.001)
            connection.retry = _ONCE
            connection.socket_timeout = _least(own_s, left_s)
            connection.socket_connect_timeout = _least(connection.socket_connect_timeout, left_s)
            self.bound.ends_s = ends_s
        connection.connect()  # a Sentinel's connection asks for the primary here
        self.bound.ends_s = None
        connection.socket_timeout = own_s

    def send(self, packed: list[bytes], ends_s: float | None) -> float:
        """Hand a command over; returns until when its answer has to be there."""
        if ends_s is None:
            timeout_s = self.connection.socket_timeout
            ends_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        self.bound.ends_s = ends_s
        self.connection.send_packed_command(packed, check_health=False)
        self.bound.ends_s = None
        return ends_s

    def is_silent(self) -> bool:
        """Whether the server has neither closed it nor left an answer on it that nobody waits for."""
        try:
            return not self.connection.can_read()
        except (Unreachable, Unanswered, OSError):
            return False


def _least(own_s: float | None, left_s: float) -> float:
    return left_s if own_s is None else min(own_s, left_s)


def _held_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True, eq=False)
class _Opening:
    """A connection that a thread is opening; whoever waits for it may give up, and the next one go on waiting."""

    pin: Pin
    is_begun: bool = False
    is_awaited: bool = True
    is_done: bool = False
    failure: BaseException | None = None
    wakes: threading.Lock = field(default_factory=_held_lock)
    """Held until it is done; no Event, see ``Pinned``."""


class Pinned:
    """Commands over connections like those of a client's pool: as many as call at the same time.

    No more than the pool may have; who comes when all are in use waits for one. Only a command that could not even be
    handed over, on a connection that the server had closed, goes out again on a new one. A lost reply raises what
    redis-py raises. Threads may share it; after a fork the child opens its own.
    """

    def __init__(self, pool: Any) -> None:  # noqa: ANN401 - untyped in redis-py
        self._pool = ref(pool)
        self._most: float = getattr(pool, "max_connections", None) or math.inf
        self._within_s: float | None = None
        self._generation = 0
        self.begin()

    def begin(self) -> None:
        """Have no connection. In a forked child: what there is belongs to the parent, and so may the lock."""
        # Not a Condition, nor an Event: a signal handler may raise at any step of Python code, as in a Condition's
        # __enter__, and would leave it held for ever. A lock is taken in one step.
        self._lock = threading.Lock()
        self._generation += 1  # one that is in use does not come back
        self._pins: WeakSet[Pin] = WeakSet()
        self._idle: deque[Pin] = deque()
        self._abandoned: list[_Opening] = []
        self._turns: deque[threading.Lock] = deque()
        """Of those who wait for a connection: each is held until it is their turn to look."""

    def shorten_timeout(self, timeout_s: float) -> None:
        """From the next command on a call may take no longer than this in all."""
        self._within_s = timeout_s

    def execute(self, *command: str | bytes | int, ends_s: float | None = None) -> Any:  # noqa: ANN401 - whatever the server answers
        """The answer to one command; raises as ``redis.Redis.execute_command`` does."""
        return self.send(*command, ends_s=ends_s).answer()

    def send(self, *command: str | bytes | int, ends_s: float | None = None) -> Asked:
        """Send one command and leave its answer for later; raises as ``execute`` where it cannot be handed over.

        ``ends_s`` is the instant (monotonic) at which all of it ends, whatever it waits for then: a name's address, a
        Sentinel, a connection, the answer. Without one the time-outs of the client count, each for its own step.
        """
        packed = pack(command)
        if ends_s is None and self._within_s is not None:
            ends_s = time.monotonic() + self._within_s
        pin = self._take(ends_s)
        try:
            return self._hand_over(pin, packed, ends_s)
        except Unreachable:
            pin = self._new(ends_s)
        return self._hand_over(pin, packed, ends_s)

    def _hand_over(self, pin: Pin, packed: list[bytes], ends_s: float | None) -> Asked:
        try:
            until_s = pin.send(packed, ends_s)
        except BaseException as error:
            self._fail(pin, error)
            raise
        return Asked(self, pin, until_s, may_be_late=ends_s is None)

    def close(self) -> None:
        """Close what is idle now, and what is in use when it comes back."""
        self._generation += 1
        self._drop_idle()

    def _fail(self, pin: Pin, error: BaseException) -> None:
        pin.bound.ends_s = None
        if is_answer(error):
            self._put_back(pin)
            return
        self._drop(pin)  # half an answer may be left on it, also when a signal broke in
        self._drop_idle()  # they may meet the same: a Sentinel's are opened at the new primary

    def _put_back(self, pin: Pin) -> None:
        if pin.generation != self._generation:
            self._drop(pin)
            return
        now_s = pin.used_s = time.monotonic()
        try:
            self._idle.append(pin)
            if self._idle[0].used_s < now_s - KEPT_S:
                self._drop(self._idle.popleft())
        except IndexError:  # others took all of them meanwhile
            pass
        self._tell()

    def _drop(self, pin: Pin) -> None:
        self._pins.discard(pin)
        pin.connection.disconnect()
        self._tell()

    def _drop_idle(self) -> None:
        while self._idle:
            try:
                self._drop(self._idle.pop())
            except IndexError:  # as above
                return

    def _tell(self) -> None:
        """Wake one who waits for a connection."""
        if self._turns:
            with suppress(IndexError):  # others woke all of them meanwhile
                self._turns.popleft().release()

    def _take(self, ends_s: float | None) -> Pin:
        while True:
            try:
                pin = self._idle.pop()
            except IndexError:
                return self._new(ends_s)
            if time.monotonic() - pin.used_s <= TRUSTED_S or pin.is_silent():
                return pin
            self._drop(pin)

    def _new(self, ends_s: float | None) -> Pin:
        """A connection that was opened just now, or that just came back."""
        while True:
            found = self._place(ends_s)
            if isinstance(found, Pin):
                return found
            is_ours = not found.is_begun
            if is_ours:
                self._begin_to_open(found, ends_s)
            self._await(found, ends_s)
            if found.failure is None:
                return found.pin
            self._drop(found.pin)
            if is_ours:  # one that was begun earlier, for another caller, is worth a second attempt
                raise found.failure

    def _place(self, ends_s: float | None) -> Pin | _Opening:
        """Whatever there is first: one that is being opened for nobody, room for a new one, one that came back."""
        turn = _held_lock()
        self._turns.append(turn)
        try:
            while True:
                with self._lock:
                    if self._abandoned:
                        opening = self._abandoned[-1]
                        opening.is_awaited, opening.pin.bound.ends_s = True, ends_s
                        return self._abandoned.pop()
                    if len(self._pins) < self._most:
                        pin = self._make()
                        self._pins.add(pin)
                        return _Opening(pin)
                try:
                    return self._idle.pop()
                except IndexError:
                    pass
                if turn.acquire(timeout=_LOOK_AGAIN_S if ends_s is None else min(_LOOK_AGAIN_S, _left(ends_s))):
                    self._turns.append(turn)
        finally:
            try:
                self._turns.remove(turn)
            except ValueError:  # it was woken and needs it no more
                self._tell()

    def _make(self) -> Pin:
        pool: Any = self._pool()
        if pool is None:
            raise Unreachable("the client of this connection is gone")
        return Pin.like(pool)

    def _begin_to_open(self, opening: _Opening, ends_s: float | None) -> None:
        """Open it, in a thread where there is an end: not all that this waits for can be told when to stop."""
        opening.is_begun = True
        if ends_s is not None:
            try:
                _thread.start_new_thread(self._open, (opening, ends_s))  # Thread.start waits for an Event
            except RuntimeError as error:  # the interpreter is ending, and begins no thread any more
                if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                    raise  # it is a signal handler's, and the thread has begun
            else:
                return
        self._open(opening, ends_s)

    def _open(self, opening: _Opening, ends_s: float | None) -> None:
        try:
            opening.pin.open(ends_s)
        except BaseException as error:  # noqa: BLE001 - whoever waits for it is told
            opening.failure = error
        opening.pin.generation = self._generation
        with self._lock:
            opening.is_done = True
            opening.wakes.release()
            if opening.is_awaited:
                return
            self._abandoned.remove(opening)
        if opening.failure is None:
            self._put_back(opening.pin)
        else:
            self._drop(opening.pin)

    def _await(self, opening: _Opening, ends_s: float | None) -> None:
        """Raises ``TimeoutError`` of redis-py at the end; the connection is then for whoever comes next."""
        try:
            opening.wakes.acquire(timeout=-1 if ends_s is None else _left(ends_s))
        finally:
            with self._lock:
                if not opening.is_done:
                    self._abandoned.append(opening)
                    opening.is_awaited = False
        if not opening.is_awaited:
            raise Unanswered("Timeout connecting to server")


def _left(ends_s: float) -> float:
    left_s = ends_s - time.monotonic()
    if left_s <= 0:
        raise Unanswered("Timeout waiting for a connection")
    return left_s


def pack(command: tuple[str | bytes | int, ...]) -> list[bytes]:
    """The command as it is sent, in one piece: redis-py's own way takes three times as long, and sends many pieces."""
    pieces = [b"*%d" % len(command)]
    add = pieces.append
    for word in command:
        text = word.encode() if isinstance(word, str) else word if isinstance(word, bytes) else b"%d" % word
        add(b"$%d" % len(text))
        add(text)
    add(b"")
    return [b"\r\n".join(pieces)]


def is_answer(error: BaseException) -> bool:
    """Whether the connection is as good as before; not when a primary was made a replica, which is another server."""
    return isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError)


class Asked:
    """A command that was sent over a pinned connection, which it keeps until it is answered. For one thread."""

    __slots__ = ("_may_be_late", "_pin", "_pinned", "_until_s")

    def __init__(self, pinned: Pinned, pin: Pin, until_s: float, *, may_be_late: bool) -> None:
        self._pinned = pinned
        self._pin = pin
        self._until_s = until_s
        self._may_be_late = may_be_late

    def answer(self) -> Any:  # noqa: ANN401 - whatever the server answers
        """Wait for the answer, once; raises as ``Pinned.execute`` does. The time to wait began when it was sent."""
        pin = self._pin
        try:
            pin.bound.ends_s = self._extended() if self._may_be_late else self._until_s
            answer = pin.connection.read_response()
        except BaseException as error:
            self._pinned._fail(pin, error)  # noqa: SLF001 - the two are one
            raise
        pin.bound.ends_s = None
        self._pinned._put_back(pin)  # noqa: SLF001 - as above
        return answer

    def _extended(self) -> float:
        """Until when all of the answer has to be there. One that is read late has begun in time, and takes its own."""
        left_s = self._until_s - time.monotonic()
        if left_s == math.inf or left_s > self._pin.connection.socket_timeout - _LATE_S:
            return self._until_s
        if not self._pin.connection.can_read(max(0.0, left_s)):
            raise Unanswered("Timeout reading from socket")
        return time.monotonic() + float(self._pin.connection.socket_timeout)


_PINNED: Final[WeakKeyDictionary[Any, Pinned]] = WeakKeyDictionary()


def _begin_in_child() -> None:
    for each in list(_PINNED.values()):
        each.begin()


os.register_at_fork(after_in_child=_begin_in_child)


def pinned(client: redis.Redis) -> Pinned:
    """The connections like those of a client's pool, the same for all who ask; what closes the pool closes them.

    No event of redis-py's tells of that, so the pool's ``disconnect``, which ``client.close`` calls, is led over here.
    """
    pool: Any = client.connection_pool  # untyped in redis-py
    found = _PINNED.get(pool)
    if found is None:
        found = _PINNED.setdefault(pool, Pinned(pool))
        kind, that = type(pool), ref(pool)

        def disconnect(*arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as of the pool
            if (pool := that()) is not None:
                kind.disconnect(pool, *arguments, **options)
                _PINNED[pool].close()

        pool.disconnect = disconnect
    return found
