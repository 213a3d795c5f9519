"""``dispatcher events``: what became of the newest events of the whole fleet."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

import click

from dispatcher.cli.context import desk_named, warn_if_unfamiliar
from dispatcher.cli.exits import DONE
from dispatcher.cli.interruption import Interruption
from dispatcher.cli.options import WHEN, at_most, for_reason, of_category, with_words
from dispatcher.cli.terminal import Terminal
from dispatcher.core.limits import ENDING
from dispatcher.errors import GateUnavailable
from dispatcher.store.counts import OUTCOMES

if TYPE_CHECKING:
    from dispatcher.app.operating import Desk
    from dispatcher.core.explain import Decision
    from dispatcher.core.typed_instants import When
    from dispatcher.store.decisions import DecisionFilter

_WAIT_MS: Final = 1_000


@click.command()
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Only those that ended so.")
@for_reason(ENDING)
@of_category
@with_words
@click.option("--since", type=WHEN, help="Only those that ended then or later: 2h (that long ago), yesterday.")
@click.option("--until", "--before", "until", type=WHEN, help="Only those that ended before then: today.")
@click.option("--follow", is_flag=True, help="Go on with each event that ends, the oldest first, until interrupted.")
@at_most
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; with --follow one for each event.")
@click.pass_obj
def events(  # noqa: PLR0913 - click's signature: one for each option
    terminal: Terminal,
    /,
    *,
    outcome: str | None,
    reason: str | None,
    category: str | None,
    words: tuple[str, ...] | None,
    since: When | None,
    until: When | None,
    follow: bool,
    limit: int,
    as_json: bool,
) -> int:
    """Show what became of the newest events of all hosts, the newest first.

    It reads the decision record: it keeps the newest events, as many as "decisions" of the limits file says. "explain"
    takes the ids.
    """
    from dispatcher.core.typed_instants import span_between
    from dispatcher.store.decisions import DecisionFilter

    with desk_named(terminal, quiet=as_json) as desk:
        decisions = desk.decisions
        warn_if_unfamiliar(terminal, desk, category)
        span = span_between(since, until, decisions.now_us)
        wanted = DecisionFilter(outcome, reason, category, *span, words or ())
        if follow:
            return _follow(terminal, desk, wanted, as_json=as_json)
        found = list(islice(filter(wanted.matches, decisions.newest()), limit + 1))
        kept_since_us = decisions.kept_since_us()
    more, found = len(found) > limit, found[:limit]
    if as_json:
        from dispatcher.app.documents.events import decisions_document

        terminal.print_json(decisions_document(found, kept_since_us, more=more))
        return DONE
    if not found:
        terminal.say("no event matches" if kept_since_us is not None else "no event has ended yet")
        return DONE
    from dispatcher.cli.events_view import kept, listing

    terminal.draw(listing(found))
    if more:
        terminal.say(f"there are more than these {limit}: --limit N shows N")
    terminal.say(kept(kept_since_us))
    return DONE


def _follow(terminal: Terminal, desk: Desk, wanted: DecisionFilter, *, as_json: bool) -> int:
    """Print each event as it ends, until a signal or a closed pipe. While the server is away, wait for it.

    Raises ``ConfigError`` where the server that is back refuses the login, or has another layout.
    """
    from dispatcher.server.connection import translate_refusals

    show, decisions = _line_of(as_json=as_json), desk.decisions
    ends = decisions.ends()
    is_away = False
    with Interruption() as interruption, suppress(KeyboardInterrupt):
        while not terminal.is_unread:
            interruption.raise_if_asked()
            try:
                with translate_refusals(desk.client):
                    if is_away:
                        desk.check()
                        before, ends = ends, decisions.within(ends)
                        lost = "" if ends == before else ", without what was shown last: what ends from now on is shown"
                        terminal.say(f"the server is back{lost}")
                        is_away = False
                    found, ends = decisions.since(ends, wait_ms=_WAIT_MS)
            except GateUnavailable as error:
                if not is_away:
                    terminal.warn(f"{error}; this waits for the server, and then shows what has ended meanwhile")
                is_away = True
                time.sleep(_WAIT_MS / 1_000)
                continue
            for each in filter(wanted.matches, found):
                terminal.print(show(each))
    return DONE


def _line_of(*, as_json: bool) -> Callable[[Decision], str]:
    if as_json:
        import json

        from dispatcher.app.documents.events import decision_document

        return lambda each: json.dumps(decision_document(each), ensure_ascii=False)
    from dispatcher.cli.events_view import line

    return line
