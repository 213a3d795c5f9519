"""Which events a limit refuses for certain, and until when: these need not be asked about at their own instant.

A refusal names the scope that frees up last, and the exact time until it does. Nothing but a slot that is given back
makes that sooner, so until then each event that needs a slot of this scope is refused. If that is its end, the end is
known but for the name of the scope, and that changes with an admission only. If its category defers, and others of it
wait, it waits behind them, whenever it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from dispatcher.core.limits import Denied, Scope
from dispatcher.core.policy import OnLimit, Policy
from dispatcher.core.units import US
from dispatcher.simulate.arrivals import Arrival
from dispatcher.simulate.fleet import Clock
from dispatcher.store.admission import Prefilter

_REMEMBERED: Final = 4_096
"""The scopes of so many categories are kept ready."""


class _Refusal(NamedTuple):
    until_us: int
    denied: Denied


class Refused:
    """What refusals say of later events. ``forget`` it when a slot may have been given back."""

    def __init__(
        self, policy: Policy, prefilter: Prefilter, clock: Clock, has_line: Callable[[str], bool] = lambda _: False
    ) -> None:
        """``has_line`` says of a category that defers whether events of it wait for room."""
        self._policy = policy
        self._has_line = has_line
        self._prefilter = prefilter
        self._clock = clock
        self._scopes: dict[str, _Refusal] = {}
        self._needed: dict[str, tuple[str, ...]] = {}
        self._named: dict[str, int] = {}

    def learn(self, denied: Denied) -> None:
        """A limit has refused an event at this instant."""
        # A held slot may be one for a day; once its event is posted, for one window.
        wait_us = min(denied.retry_after_us, denied.limit.window_us)
        self._scopes[denied.scope] = _Refusal(self._clock.now_us + wait_us, denied)

    def forget(self) -> None:
        """Nothing is certain any more."""
        self._scopes.clear()

    def until_us(self, arrival: Arrival) -> int:
        """Until when an event such as this is certain not to be admitted as it comes; 0 if that is not known.

        Where it is deferred, this holds until something else is due: nobody overtakes those who wait.
        """
        if arrival.details.is_remarkable:
            return 0
        category = arrival.category
        rule = self._policy.rule(category)
        if rule.on_limit is OnLimit.DEFER:
            is_plain = not (rule.per_label or rule.once or rule.telling or self._policy.quiet)
            own_us = rule.max_age_us if arrival.details.max_age is None else round(arrival.details.max_age * US)
            age_us = min(rule.max_age_us, own_us)
            return self._clock.now_us + age_us if is_plain and self._has_line(category) else 0
        needed = self._needed.get(category)
        if needed is None:
            if len(self._needed) >= _REMEMBERED:
                self._needed.clear()
                self._named.clear()
            needed = self._needed[category] = self._scopes_of(category)
        last: _Refusal | None = None
        for scope in needed:
            refusal = self._scopes.get(scope)
            if refusal is not None and (last is None or refusal.until_us > last.until_us):
                last = refusal
        if last is None or last.until_us <= self._clock.now_us:
            return 0
        loud_us = self._policy.hours.loud_until_us(category, self._clock.now_us) if self._policy.quiet else None
        if loud_us is None and self._policy.quiet:
            return 0
        if rule.on_limit is OnLimit.DROP and self._named.get(category, 0) < last.until_us:
            self._name(category, last)
        return last.until_us if loud_us is None else min(last.until_us, loud_us)

    def _scopes_of(self, category: str) -> tuple[str, ...]:
        """The scopes of which each event of the category needs a slot; none where a refusal is not its end."""
        policy, rule = self._policy, self._policy.rule(category)
        drops = rule.on_limit in {OnLimit.DROP, OnLimit.DEAD_LETTER} and policy.counting(category) is None
        drops = drops and not rule.per_label and rule.once is None
        if not drops or (policy.reject_unknown and not policy.knows(category)):
            return ()
        return tuple(demand.name for demand in policy.scopes(category) if isinstance(demand, Scope))

    def _name(self, category: str, refusal: _Refusal) -> None:
        """Have ``take`` drop them itself: else each is leased first."""
        denied, policy = refusal.denied, self._policy
        wait_us = refusal.until_us - self._clock.now_us
        known = Denied(denied.scope, denied.limit, wait_us)
        self._prefilter.add(category, policy.scopes(category), known, configured=policy.knows(category))
        self._named[category] = refusal.until_us
