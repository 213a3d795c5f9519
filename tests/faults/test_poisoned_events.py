"""What one event or one channel meets is no outage: a few events that Slack never takes, among many that it does.

The scripts, the core, the sink and HTTP are the real ones; time is made up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain, count
from typing import Any, Final

import pytest

from dispatcher.core.states import DeadLettered, Sent
from dispatcher.core.transitions import MAX_ATTEMPTS
from dispatcher.core.units import US
from dispatcher.slack.taxonomy import Meaning, row_for
from dispatcher.stand_in import FaultReply, Hang, Page, Reset, SlackError, Text, TooManyRequests
from tests.support.poison import POISONS, Credential, Poison, Slack, open_slack
from tests.support.quiet_stage import QuietStage
from tests.support.servers import Database
from tests.support.virtual_fleet import Arrival, VirtualFleet

LIMITS: Final = """\
global: {limits: []}
channels: {default: {pace: 10/10s}}
defaults: {limits: [], channel: "#general"}
"""
PROMPT_US: Final = 10 * US
LONGEST_GAP_US: Final = 30 * US
"""From one probe to the next in an outage, and from one post to the next in a channel that is held up."""

COOL_DOWNS: Final = 12
"""Events that are told to wait, which uses up no attempt, live so many cool-downs, half a minute at least."""

MOST_S: Final = 24 * 3_600
AT_ONCE: Final = 10
SOON_S: Final = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 100, 110, 120, 150, 180, 210, 240)
LATER_S: Final = 300
QUIET_S: Final = 25
"""So long the poisoned events may be alone: an outage has begun before anybody else comes."""

USUAL_MATES: Final = 5


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def end_of(poison: Poison, credential: Credential) -> str:
    """What the error table says of an event whose every post meets this: the reason of its end."""
    match poison.meaning:
        case Meaning.ROUTE | Meaning.CONTENT | Meaning.OPERATOR:
            return "rejected"
        case Meaning.LATER | Meaning.AGAIN:
            return "exhausted"
        case Meaning.COOL_DOWN:
            return "expired"
        case _:
            is_found = credential is Credential.HISTORY and poison.fault is not None and poison.fault.landed
            return "ok" if is_found else "ambiguous"


def cool_down_us(poison: Poison) -> int:
    """The cool-down that each of its posts causes; 0 for none."""
    if poison.meaning is not Meaning.COOL_DOWN or poison.fault is None:
        return 0
    reply = poison.fault.reply
    return int(reply.retry_after or 0) * US if isinstance(reply, TooManyRequests) else row_for(poison.code).cool_down_us


def poisoned(poison: Poison, many: int, channels: int) -> list[Arrival]:
    fields: dict[str, Any] = {}
    if poison.meaning is Meaning.COOL_DOWN:
        fields["max_age"] = max(30, COOL_DOWNS * cool_down_us(poison) // US)
    return [Arrival(0, f"poisoned{n}", f"#poisoned{n % channels}", fields) for n in range(many)]


def good(from_s: int) -> Iterator[Arrival]:
    """Events of other channels: many at once, then some, then one now and then, for ever."""
    instants = chain([0] * AT_ONCE, SOON_S, count(LATER_S, LATER_S))
    for n, at_s in enumerate(instants):
        yield Arrival((from_s + at_s) * US, f"good{n}", f"#good{n % 5}")


def waited_us(fleet: VirtualFleet, slack: Slack, prefix: str) -> dict[str, int]:
    """How long each event waited for its first post, by its id."""
    began: dict[str, int] = {}
    for at_us, id_ in slack.posts:
        began.setdefault(id_, at_us - fleet.began_us)
    return {id_: began[id_] - sent.at_us for id_, sent in fleet.sent.items() if id_.startswith(prefix)}


def check_ends(fleet: VirtualFleet, slack: Slack, poison: Poison, credential: Credential) -> None:
    """No good event dies, each poisoned one ends as the table says, within its attempts."""
    ended, expected = fleet.ended, end_of(poison, credential)
    assert {type(ended[id_].outcome) for id_ in fleet.sent.keys() - set(slack.poisoned)} <= {Sent}
    landed = [posted.text for posted in slack.stand_in.ledger.posted()]
    for id_ in fleet.sent.keys() - set(slack.poisoned):
        assert landed.count(f"text of {id_}") == 1
    for id_ in slack.poisoned:
        outcome, posts = ended[id_].outcome, slack.posts_of(id_)
        if expected == "ok":
            assert isinstance(outcome, Sent)
            assert posts == 1
            continue
        assert isinstance(outcome, DeadLettered)
        assert outcome.reason == expected
        check_attempts(poison, ended[id_].attempt, posts, can_read=credential is Credential.HISTORY)


def check_attempts(poison: Poison, attempts: int, posts: int, *, can_read: bool) -> None:
    """Probes of a pause use up no attempt, but for unconfirmed posts: of these there are eight on every path."""
    match poison.meaning:
        case Meaning.ROUTE | Meaning.CONTENT:
            assert (attempts, posts) == (1, 1)
        case Meaning.COOL_DOWN:
            assert attempts == 0
        case Meaning.AGAIN:
            assert (attempts, posts) == (MAX_ATTEMPTS, MAX_ATTEMPTS)
        case Meaning.MAYBE if not can_read:
            assert posts == MAX_ATTEMPTS
        case Meaning.MAYBE:
            assert attempts <= MAX_ATTEMPTS
            assert posts <= 3 * MAX_ATTEMPTS, (
                "many such events are an outage while nobody else posts, and then some are spared"
            )
        case _:
            assert attempts == MAX_ATTEMPTS


def most_us(poison: Poison, many: int) -> int:
    """How long an event of another channel may wait for its post."""
    if poison.meaning is Meaning.COOL_DOWN and many > 1:
        return (
            many * (cool_down_us(poison) + poison.took_us) + PROMPT_US
        )  # the workspace cools down; each of them may try
    if poison.meaning is Meaning.LATER and many > 1:
        return LONGEST_GAP_US + PROMPT_US  # where posts never leave, one channel is as good as another
    return PROMPT_US + (poison.took_us if poison.is_late else 0)  # a probe may last until its deadline


def the_poison(code: str, kind: type[FaultReply] = SlackError, *, landed: bool = False) -> Poison:
    """The first poison of a code that looks so."""
    alike = [each for each in POISONS if each.code == code and each.fault is not None and each.fault.landed == landed]
    return next(each for each in alike if each.fault is not None and isinstance(each.fault.reply, kind))


SHORT: Final = [
    (the_poison("http_5*", Page), Credential.HISTORY, 5, QUIET_S),
    (the_poison("connection_lost", Reset, landed=True), Credential.HISTORY, 5, 0),
    (the_poison("access_denied"), Credential.HISTORY, 8, QUIET_S),
    (the_poison("is_archived"), Credential.WRITE_ONLY, 5, 0),
    (the_poison("unreadable_reply", Text), Credential.WEBHOOK, 5, QUIET_S),
    (the_poison("message_limit_exceeded"), Credential.WEBHOOK, 1, 0),
]
COURSES: Final = ((1, 0), (5, QUIET_S), (8, 0), (8, QUIET_S))
"""How many poisoned events, and for how long they are alone."""


def look_of(poison: Poison) -> tuple[object, ...]:
    """What a poison has in common with others, whose codes alone differ."""
    fault = poison.fault
    return poison.meaning, None if fault is None else (type(fault.reply), fault.landed)


def whole() -> Iterator[tuple[Poison, Credential, int, int]]:
    """Each poison, in turn with each credential and course; the first of each look with every credential."""
    turns = [(credential, course) for course in COURSES for credential in Credential]
    looks = set()
    for n, poison in enumerate(POISONS):
        is_first = look_of(poison) not in looks
        looks.add(look_of(poison))
        for credential, course in [(each, COURSES[-1]) for each in Credential] if is_first else [turns[n % len(turns)]]:
            yield poison, credential, *course


WHOLE: Final = [*whole(), (the_poison("http_5*", Page), Credential.HISTORY, 8, QUIET_S)]


def params(cases: list[tuple[Any, ...]], *marks: pytest.MarkDecorator) -> list[Any]:
    return [pytest.param(*case, id=", ".join(map(str, case)), marks=marks) for case in cases]


@pytest.mark.parametrize(
    ("poison", "credential", "many", "quiet_s"), [*params(SHORT), *params(WHOLE, pytest.mark.slow)]
)
def test_other_channels_go_on_whatever_some_events_meet(  # noqa: PLR0913, PLR0917 - fixtures and a case
    redis: Database, running: ExitStack, poison: Poison, credential: Credential, many: int, quiet_s: int
) -> None:
    stage = QuietStage(redis, LIMITS)
    slack, bad = open_slack(running, credential, stage.clock), poisoned(poison, many, many)
    slack.poison, slack.poisoned = poison, {each.id for each in bad}
    fleet = VirtualFleet(stage, slack)
    fleet.run(chain(bad, good(quiet_s)), slack.poisoned, MOST_S)
    check_ends(fleet, slack, poison, credential)
    waits = waited_us(fleet, slack, "good")
    assert max(waits.values(), default=0) <= most_us(poison, many), waits


TOGETHER: Final = [
    (poison, credential, many)
    for poison in (
        the_poison("http_5*", Page),
        the_poison("reply_timeout", Hang),
        the_poison("access_denied"),
        the_poison("request_timeout"),
        the_poison("http_429", TooManyRequests),
    )
    for credential in Credential
    for many in (1, 5, 8)
    if many == 1 or poison.meaning is not Meaning.COOL_DOWN
]
TOGETHER_SHORT: Final = [
    (the_poison("http_5*", Page), Credential.WEBHOOK, 5),
    (the_poison("http_429", TooManyRequests), Credential.HISTORY, 1),
]


@pytest.mark.parametrize(
    ("poison", "credential", "many"), [*params(TOGETHER_SHORT), *params(TOGETHER, pytest.mark.slow)]
)
def test_their_own_channel_goes_on_when_each_of_them_was_tried(
    redis: Database, running: ExitStack, poison: Poison, credential: Credential, many: int
) -> None:
    """Who stands behind them waits for one post of each, and the times for which their channel is held up by these."""
    stage = QuietStage(redis, LIMITS)
    slack, bad = open_slack(running, credential, stage.clock), poisoned(poison, many, 1)
    slack.poison, slack.poisoned = poison, {each.id for each in bad}
    mates = [Arrival(0, f"mate{n}", "#poisoned0") for n in range(USUAL_MATES)]
    fleet = VirtualFleet(stage, slack)
    fleet.run(chain(bad, mates, good(0)), slack.poisoned, MOST_S)
    check_ends(fleet, slack, poison, credential)
    tries = many + poison.is_late  # the first may be tried again before the second one has failed
    held_us = sum(min(US * 2 ** (nth - 2), LONGEST_GAP_US) for nth in range(2, tries + 1))
    if poison.meaning is Meaning.COOL_DOWN:
        held_us = MAX_ATTEMPTS * cool_down_us(poison)
    if poison.meaning is Meaning.OPERATOR:
        held_us = many * LONGEST_GAP_US
    waits = waited_us(fleet, slack, "mate")
    assert len(waits) == USUAL_MATES
    assert max(waits.values()) <= held_us + tries * poison.took_us + PROMPT_US, waits
