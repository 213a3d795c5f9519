"""What digests and notices say. Pure: no I/O, no clock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from dispatcher.content import cut, escape, without_controls
from dispatcher.model import US
from dispatcher.tally import Tally, Telling

_BEING: Final = {
    "dropped": "are being dropped",
    "dead": "are being kept as dead letters",
    "deferred": "are being delayed",
}
_DONE: Final = {"dropped": "dropped", "dead": "kept as dead letters", "deferred": "delayed"}


def text_of(tally: Tally, *, ends: bool) -> str:
    """The message about a tally, in Slack's markup, of which the count is the one that it shows."""
    text = _digest(tally, ends=ends) if tally.telling is Telling.DIGEST else _notice(tally, ends=ends)
    return cut(text)


def _digest(tally: Tally, *, ends: bool) -> str:
    name, first = f"*{escape(tally.category)}*", clock_of(tally.first_us)
    if ends:
        span = f"from {first} to {clock_of(tally.last_us)}"
        heading = f"{tally.count} more {name} suppressed {span} ({_limit(tally)}), closed"
    else:
        last = clock_of(tally.last_us)
        heading = f"{tally.count} more {name} suppressed since {first}, the last at {last} ({_limit(tally)})"
    return "\n".join([heading, *(f"• {escape(without_controls(sample))}" for sample in tally.samples)])


def _notice(tally: Tally, *, ends: bool) -> str:
    name, first = f"*{escape(tally.category)}*", clock_of(tally.first_us)
    if not ends:
        being = _BEING.get(tally.outcome, "are being suppressed")
        return f"{name}: over {_amount(tally)}, events {being} from {first} on"
    done = _DONE.get(tally.outcome, "suppressed")
    return f"{name}: over {_amount(tally)} from {first}, ended {clock_of(tally.last_us)}: {tally.count} {done}"


def _limit(tally: Tally) -> str:
    return f"limit {_amount(tally)}"


def _amount(tally: Tally) -> str:
    """The limit, and whose it is where that is not the category's."""
    if tally.scope == f"category:{tally.category}":
        return escape(tally.limit)
    kind, _, rest = tally.scope.partition(":")
    of = "all events together" if kind != "label" else rest.removeprefix(f"{tally.category}:")
    return f"{escape(tally.limit)} for {escape(without_controls(of))}"


def clock_of(instant_us: int) -> str:
    """A time of day that Slack shows in each reader's own zone; elsewhere it is UTC."""
    moment = datetime.fromtimestamp(instant_us // US, UTC)
    return f"<!date^{instant_us // US}^{{time}}|{moment:%H:%M} UTC>"
