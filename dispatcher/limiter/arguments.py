"""What a user of the limiter passes in, checked before anything is sent: a refusal names the thing and its value."""

from __future__ import annotations

import itertools
import os
import secrets
import sys
from collections.abc import Iterable
from typing import Final, TypeAlias

from dispatcher.core.limits import A_NAME, MAX_NAME, Demand, FirstOf, Scope, all_scopes, digest_id, quoted, slot_id
from dispatcher.core.units import is_utf8

MAX_COST: Final = 1_000
"""Slots that one request takes at once: each is a member of a sorted set, and all are written in one call."""

Scopes: TypeAlias = Demand | Iterable[Demand]
"""One scope, or several, each a slot that has to be free."""


MOST_IDS: Final = 16**7
"""So many ids have one beginning: with its nine characters none is longer than what a scope stores as it is."""


class Ids:
    """New ids, no two alike in any process: a random beginning, and a count. A fork and a long count renew both."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._now = secrets.token_urlsafe(7)[:9], itertools.count()  # in one step, since threads share it

    def __call__(self) -> str:
        """One more."""
        beginning, numbers = self._now
        number = next(numbers)
        if number >= MOST_IDS:
            self._renew()
            return self()
        return f"{beginning}{number:x}"

    def many(self, count: int) -> list[str]:
        """So many at once."""
        beginning, numbers = self._now
        taken = list(itertools.islice(numbers, count))
        if taken and taken[-1] >= MOST_IDS:
            self._renew()
            return [self() for _ in range(count)]
        return [f"{beginning}{number:x}" for number in taken]


new_id: Final = Ids()


def checked_scopes(scopes: Scopes) -> tuple[Demand, ...]:
    """What is asked for, as a tuple without doubles; raises ``ValueError`` or ``TypeError``."""
    if type(scopes) is tuple or type(scopes) is list:  # told by their types, since this runs for every request
        demands: tuple[Demand, ...] = tuple(scopes)
    elif type(scopes) is Scope or type(scopes) is FirstOf:
        demands = (scopes,)
    elif isinstance(scopes, Iterable) and not isinstance(scopes, str | bytes):
        demands = tuple(scopes)
    else:
        raise TypeError(f"scopes {quoted(scopes)}, expected a Scope, a FirstOf, or several of them")
    names = []
    for demand in demands:
        if type(demand) is Scope:
            names.append(demand.name)
        elif type(demand) is FirstOf:
            names += [scope.name for scope in demand.scopes]
        else:
            raise TypeError(f"scope {quoted(demand)}, expected a Scope or a FirstOf")
    if not names:
        raise ValueError("scopes are empty, expected at least one")
    if len(names) > 1 and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"scope {twice!r} stands twice in one request, expected each name once")
    return demands


def checked_requests(
    requests: Iterable[Scopes], ids: Iterable[str | None] | None
) -> tuple[list[tuple[Demand, ...]], list[str]]:
    """The requests of a batch and an id for each; one that stands there several times is checked once."""
    if isinstance(requests, Scope | FirstOf | str | bytes) or not isinstance(requests, Iterable):
        raise TypeError(f"requests {quoted(requests)}, expected a list with what each request asks for")
    asked = list(requests)
    names = new_id.many(len(asked)) if ids is None else [checked_id(each) for each in ids]
    if len(names) != len(asked):
        raise ValueError(f"{len(asked)} requests and {len(names)} ids, expected one id for each")
    kinds = list(map(id, asked))
    checked = {kind: checked_scopes(scopes) for kind, scopes in dict(zip(kinds, asked, strict=True)).items()}
    return [checked[kind] for kind in kinds], names


def checked_id(id_: str | None) -> str:
    """The user's id or a new one; raises ``ValueError`` for one that is empty, too long or no text."""
    if id_ is None:
        return new_id()
    if not isinstance(id_, str) or not 1 <= len(id_) <= MAX_NAME or not is_utf8(id_):
        raise ValueError(f"id {quoted(id_)}, expected {A_NAME}")
    return id_


def given_id(id_: str | None) -> str:
    """The id under which slots were taken; raises as ``checked_id``, and for None too: a new id has taken none."""
    if id_ is None:
        raise ValueError(f"id None, expected {A_NAME}")
    return checked_id(id_)


def checked_cost(cost: int, demands: tuple[Demand, ...] = ()) -> int:
    """How many slots a request takes at once; raises ``ValueError`` for more than each limit it asks can ever hold."""
    if type(cost) is not int or not 1 <= cost <= MAX_COST:
        raise ValueError(f"cost {quoted(cost)}, expected a whole number from 1 to {MAX_COST}")
    if cost > 1:
        for scope in all_scopes(demands):
            for limit in scope.limits:
                if cost > limit.max:
                    raise ValueError(
                        f"cost {cost}, expected at most {limit.max}: scope {scope.name!r} has the limit {limit}"
                    )
    return cost


def checked_timeout(timeout: float | None) -> float | None:
    """Seconds to wait, at most what a float can say, or None; raises ``ValueError`` for what is no number from 0 on."""
    if timeout is None:
        return None
    if not isinstance(timeout, int | float) or not timeout >= 0:  # nor is NaN
        raise ValueError(f"timeout {quoted(timeout)}, expected seconds from 0 on, or None to wait as long as it takes")
    return min(timeout, sys.float_info.max)


def checked_version(version: str | None) -> str | None:
    """The version of the limits that a call names, or None; raises ``ValueError``."""
    return None if version is None else new_version(version)


def new_version(version: str) -> str:
    """A version of the limits that is to be in force; raises ``ValueError``."""
    if not isinstance(version, str) or not version or not is_utf8(version):
        raise ValueError(f"version {quoted(version)}, expected a text such as '7'")
    return version


def checked_now(now_us: int | None) -> int | None:
    """An instant, or None for the server's clock; raises ``ValueError``."""
    if now_us is not None and (type(now_us) is not int or not 0 <= now_us < 2**52):
        raise ValueError(f"now_us {quoted(now_us)}, expected whole microseconds since 1970")
    return now_us


def releasable(demands: tuple[Demand, ...]) -> list[Scope]:
    """The scopes whose slots can be given back; raises ``ValueError`` for one that keeps no ids."""
    scopes = list(all_scopes(demands))
    for scope in scopes:
        if not scope.ids:
            raise ValueError(f"scope {scope.name!r} keeps no ids, so none of its slots can be given back")
    return scopes


def slot_of(id_: str, cost: int = 1) -> str:
    """The name of an id in a scope: short, since each scope stores it. With another cost an id has another name."""
    return slot_id(id_) if cost == 1 else digest_id(f"{cost} {id_}")


def checked_scope(scope: Scope) -> Scope:
    """One scope; raises ``TypeError``."""
    if type(scope) is not Scope:
        raise TypeError(f"scope {quoted(scope)}, expected a Scope")
    return scope
