"""Scenes on a stage that together call every script of the product, each in many situations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from dispatcher.core.event import Event
from dispatcher.core.limits import Bounds, FirstOf, Limit, Scope
from dispatcher.core.matchers import parse_matchers
from dispatcher.core.ports import Overtaken
from dispatcher.core.posts import Ambiguous, Paused, PostResult, RateLimitedBySlack, Receipt, Rejected, Retryable
from dispatcher.core.states import Absent, ScanLater, ScanResult, Search, Unreadable
from dispatcher.core.units import US, Lane
from dispatcher.errors import ConfigError
from dispatcher.limiter import Limiter
from dispatcher.limiter.wire import Calls, Step, WaitingRequest
from dispatcher.server.connection import Script
from dispatcher.store.dead_letters import Filter
from dispatcher.store.explanations import ids_of
from dispatcher.store.intake import claim_namespace, seal
from dispatcher.store.parked_events import ParkedFilter
from dispatcher.store.removals import Removals
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.rq_recovery import Sweep
from dispatcher.store.silences import Wanted
from dispatcher.store.versions import Unless
from tests.support.quiet_stage import FREE, QuietStage
from tests.support.servers import Database
from tests.support.stage import Stage, Worker

Scene = Callable[[Database], None]

DOWN: Final = Retryable("connection_refused", "refused")
UNCLEAR: Final = Ambiguous("reply_timeout", "no answer")
BUSY: Final = RateLimitedBySlack(7_000_000, "ratelimited")
REVOKED: Final = Paused("invalid_auth", "the token is not valid")
GONE: Final = Rejected("is_archived", "archived")


def answer_all(worker: Worker, result: PostResult) -> None:
    """Start what may be, and let every post come to this."""
    started = worker.go()
    worker.settle([worker.dispatcher.conclude(each, result) for each in started])


def explain_all(stage: Stage, *ids: str) -> None:
    """Look at each."""
    for id_ in ids:
        stage.explanations.find(ids_of(id_), payloads=True)


def cancel_all(stage: Stage) -> int:
    """Cancel whatever is parked; how many were."""
    parked = stage.parked_events
    found = list(parked.find(ParkedFilter()))
    for category in {"none", *(each.explanation.category for each in found)}:
        list(parked.find(ParkedFilter(category)))
    parked.cancel(found, "ed")
    parked.cancel(found, "ed")
    return len(found)


def storm(redis: Database) -> None:
    """A category over its limit, known ids, and what is no event."""
    text = f"{FREE}global: {{limits: [20/30m]}}\ndefaults: {{limits: [3/30m, 2/1s], channel: '#free'}}\n"
    stage = QuietStage(redis, text)
    ann = stage.worker()
    ann.take()
    ann.follow(stage.put_in_force(text))
    stage.send("a")
    ann.run()
    stage.send(*"abcdef")
    stage.send("g", priority=Lane.HIGH)
    stage.send("h", category="strange", priority=Lane.LOW)
    stage.send_unnamed()
    ann.run()
    for _ in range(3):
        stage.send_unnamed()
    stage.send("i", "j", "k", category="other")
    stage.send("at-five", "at-six", not_before=stage.clock.now_us / US + 5)
    due_s = stage.clock.now_us // US
    redis.zadd(stage.queue.scheduled[1], {"stock": due_s, "deleted": due_s, "wrong-type": due_s, "next": due_s + 5})
    redis.hset(stage.queue.job("stock"), "data", "no event")
    redis.hset(stage.queue.job("next"), "data", "no event")
    redis.set(stage.queue.job("wrong-type"), "x")
    redis.rpush(stage.queue.lane(Lane.NORMAL), "a", "no-such-job", "odd id \xff", "wrong")
    redis.hset(stage.queue.job("wrong"), "data", "no event")
    explain_all(stage, "a", "i", "wrong")
    ann.run()
    stage.snapshot()
    explain_all(stage, "at-five")
    stage.clock.forward(5)
    ann.run()
    redis.set(stage.queue.suspended, "1")
    ann.take()
    redis.delete(stage.queue.suspended)
    stage.clock.forward(1_800)
    stage.send("late", "late2")
    ann.run()
    stage.snapshot()
    explain_all(stage, "late")


def paced(redis: Database) -> None:
    """Channels with and without a pace, two workers, a bell."""
    stage = QuietStage(redis, f"{FREE}global: {{limits: [50/30m, 30/1m]}}\ndefaults: {{limits: [40/30m]}}\n")
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("a", "b", "c")
    stage.send("d", "e", channel="#free")
    stage.send("f", channel="#ops", thread="deploy 7")
    started = ann.go(free=4)
    stage.snapshot()
    explain_all(stage, "a", "b", "c")
    bob.go()
    ann.deliver(started)
    ann.renew()
    for _ in range(4):
        stage.clock.forward(1)
        ann.deliver(ann.go(free=1))
        bob.run()
    stage.send("g", "h", channel="#ops", thread="deploy 7")
    for _ in range(3):
        stage.clock.forward(1)
        ann.run()
    stage.send("x", "y", "z", channel="#free")
    ann.go(free=0)
    bob.take(due=1)
    bob.take(due=2)
    ann.take(0, 0)


DEFERRING: Final = f"""{FREE}
global: {{limits: [9/1m]}}
defaults: {{limits: [], channel: '#free'}}
categories:
  errors: {{limits: [3/1m], on_limit: defer, max_parked: 6, guarantee: 1, per_label: {{host: [2/1m]}}}}
  deploys: {{limits: [4/2m], on_limit: defer, notice: true, digest_delay: 20s}}
  chatter: {{limits: [3/1m]}}
"""


def deferral(redis: Database) -> None:
    """Lines of categories, their scopes, and more than may wait."""
    stage = QuietStage(redis, DEFERRING)
    ann, bob = stage.worker("ann"), stage.worker("bob")
    for host in ("db1", "db2"):
        stage.send(*(f"{host}-{n}" for n in range(4)), labels={"host": host})
    stage.send("late", priority=Lane.HIGH)
    stage.send(*(f"d{n}" for n in range(6)), category="deploys")
    taken = ann.take(8, 8)
    ann.outbox.prefetch(taken, 4, 4)
    second = ann.take(4, 4)
    stage.send("new", "newer")
    bob.run()
    ann.deliver(ann.dispatch(taken.batch))
    ann.deliver(ann.dispatch(second.batch))
    stage.snapshot()
    explain_all(stage, "db1-3", "late", "d5")
    stage.send(*(f"more{n}" for n in range(8)))
    ann.run()
    for _ in range(3):
        stage.clock.forward(31)
        bob.renew()
        ann.run()
        bob.run()
    stage.send(*(f"c{n}" for n in range(4)), category="chatter")
    stage.send(*(f"f{n}" for n in range(5)), category="deploys")
    ann.run()
    stage.worker("carl").run()
    cancel_all(stage)


TELLING: Final = f"""{FREE}
global: {{limits: [30/1m]}}
defaults: {{limits: [2/30m], channel: '#free'}}
categories:
  errors: {{limits: [3/30m], on_limit: digest, digest_delay: 60s, guarantee: 2}}
  chatter: {{limits: [2/30m], notice: true, digest_delay: 60s}}
"""


def digest(redis: Database) -> None:
    """A digest that grows, is edited, closes and begins again; one event alone that becomes two."""
    stage = QuietStage(redis, TELLING)
    ann = stage.worker()
    stage.send(*(f"e{n}" for n in range(3)))
    ann.run()
    stage.send("joins", text_ := "f")
    explain_all(stage, text_)
    ann.run()
    stage.snapshot()
    stage.clock.forward(61)
    ann.run()
    stage.send(*(f"g{n}" for n in range(3)))
    ann.run()
    for seconds in (31, 31, 900, 1_000):
        stage.clock.forward(seconds)
        ann.run()
        stage.send_unnamed()
        ann.run()
    answer_all(ann, DOWN)
    ann.desk.reply = lambda _: GONE
    stage.send(*(f"h{n}" for n in range(4)))
    for seconds in (61, 31, 1_800, 1_800):
        stage.clock.forward(seconds)
        ann.run()


def digest_once(redis: Database) -> None:
    """A digest where messages cannot be edited, whose posts have no clear answer."""
    stage = QuietStage(redis, TELLING)
    ann, bob = stage.worker("ann"), stage.worker("bob")
    for each in (ann, bob):
        each.desk.can_update = False
    stage.send(*(f"e{n}" for n in range(6)))
    ann.run()
    stage.clock.forward(61)
    answer_all(ann, UNCLEAR)
    stage.clock.forward(11)
    stage.send("more")
    ann.desk.shows = lambda _: ScanResult({}, Unreadable("webhook", "cannot be read"))
    ann.run()
    stage.clock.forward(11)
    ann.go()
    stage.clock.forward(31)
    bob.run()
    stage.clock.forward(31)
    bob.run()
    bob.desk.reply = lambda _: DOWN
    stage.send(*(f"f{n}" for n in range(3)))
    bob.run()
    for _ in range(9):
        stage.clock.forward(61)
        bob.run()
    stage.snapshot()


def buffered_single(redis: Database) -> None:
    """One event that a limit of all refuses is set aside: it goes as itself, is cancelled, or a second one joins it."""
    stage = QuietStage(redis, TELLING.replace("30/1m", "4/1m").replace(", guarantee: 2", ""))
    ann = stage.worker()
    stage.send(*(f"o{n}" for n in range(2)), category="other")
    stage.send("e0", "e1", "e2")
    ann.run()
    stage.snapshot()
    explain_all(stage, "e2")
    stage.clock.forward(61)
    ann.run()
    stage.send(*(f"p{n}" for n in range(4)), category="third")
    stage.send("e3")
    ann.run()
    cancel_all(stage)
    stage.snapshot()
    stage.send("e4")
    ann.run()
    stage.send("e5", "e6")
    ann.run()
    stage.clock.forward(61)
    ann.run()


def notice(redis: Database) -> None:
    """A notice when suppression begins and when it ends."""
    stage = QuietStage(redis, TELLING)
    ann = stage.worker()
    stage.send(*(f"e{n}" for n in range(5)), category="chatter")
    ann.run()
    stage.snapshot()
    for seconds in (20, 61, 61, 1_800):
        stage.clock.forward(seconds)
        ann.run()
    stage.send(*(f"f{n}" for n in range(5)), category="chatter")
    ann.desk.reply = lambda _: GONE
    ann.run()
    stage.clock.forward(1_800)
    ann.run()


def trouble(redis: Database) -> None:
    """Retries, cool-downs of a channel and of the workspace, an outage, and an operator who is needed."""
    stage = QuietStage(redis, f"{FREE}global: {{limits: [90/30m, 40/10s]}}\ndefaults: {{limits: [80/30m]}}\n")
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("a", "b", channel="#a")
    answer_all(ann, DOWN)
    answer_all(ann, BUSY)
    stage.clock.forward(6)
    answer_all(ann, BUSY)
    stage.snapshot()
    explain_all(stage, "a", "b")
    stage.send("c", "d", channel="#c")
    answer_all(bob, BUSY)
    stage.snapshot()
    explain_all(stage, "d")
    for _ in range(3):
        stage.clock.forward(8)
        answer_all(bob, DOWN)
    stage.clock.forward(31)
    ann.run()
    stage.send(*(f"e{n}" for n in range(8)), channel="#free")
    answer_all(ann, DOWN)
    stage.snapshot()
    explain_all(stage, "e0")
    for result in (DOWN, UNCLEAR, GONE):
        stage.clock.forward(31)
        answer_all(bob, result)
    stage.clock.forward(31)
    ann.run()
    answer_all(ann, REVOKED)
    stage.send("f", "g", channel="#free")
    answer_all(ann, REVOKED)
    answer_all(ann, REVOKED)
    stage.snapshot()
    explain_all(stage, "f")
    stage.pausing.resume("*")
    answer_all(bob, Retryable("request_timeout", "busy", reached=True))
    stage.clock.forward(61)
    ann.run()
    stage.clock.forward(61)
    ann.run()


def history_scans(redis: Database) -> None:
    """Unconfirmed posts that are reconciled: found, absent, not to be read now, never to be read."""
    stage = QuietStage(redis, f"{FREE}global: {{limits: [90/30m]}}\ndefaults: {{limits: [80/30m], channel: '#a'}}\n")
    ann, bob = stage.worker("ann"), stage.worker("bob")
    found = ScanResult({"a": Receipt("C0ABCDEFG", "5.5")}, Absent())
    rests = (
        ScanResult({}, Absent()),
        ScanResult({}, ScanLater("ratelimited", "", 2_000_000, reached=True)),
        ScanResult({}, ScanLater("invalid_auth", "", reached=True, pause=REVOKED)),
        ScanResult({}, ScanLater("reply_timeout", "")),
        ScanResult({}, Unreadable("webhook", "")),
        found,
    )
    stage.send("a", "b", "c", channel="#free", thread="one")
    stage.send("d", "e")
    answer_all(ann, UNCLEAR)
    for n, result in enumerate(rests * 2):
        worker = (ann, bob)[n % 2]
        worker.desk.shows = partial(_shown, result)
        stage.clock.forward(11 if n % 3 else 31)
        answer_all(worker, UNCLEAR)
        explain_all(stage, "b")
    stage.send("z", channel="#free", thread="one")
    ann.desk.shows = bob.desk.shows = lambda _: ScanResult({}, Absent())
    stage.clock.forward(61)
    ann.run()
    stage.clock.forward(61)
    bob.run()


def _shown(result: ScanResult, search: Search) -> ScanResult:
    del search
    return result


def takeovers(redis: Database) -> None:
    """Workers that die at every step, one after another with the same events, or give them back."""
    stage = QuietStage(redis, DEFERRING)
    ann, bob, carl, dan = (stage.worker(name) for name in ("ann", "bob", "carl", "dan"))
    stage.send("a", "b", "c")
    stage.send("p", "q", category="other", channel="#p")
    stage.send("x", "y", category="other")
    ann.deliver(ann.go())
    stage.send("d", "e", "f")
    stage.send("r", "s", category="other", channel="#p")
    ann.run()
    ann.go()
    stage.send("untouched")
    ann.take()
    stage.snapshot()
    explain_all(stage, "untouched", "q")
    stage.clock.forward(31)
    bob.take(3, 3)
    stage.clock.forward(31)
    bob.go(3, 3)
    explain_all(stage, "untouched")
    stage.clock.forward(61)
    carl.renew()
    carl.take(2, 2)
    stage.clock.forward(31)
    for _ in range(5):
        dan.deliver(dan.go(2, 2))
        stage.clock.forward(5)
    dan.take()
    dan.keep_only()
    started = dan.go()
    dan.keep_only(*(each.candidate.leased.id for each in started[:1]))
    dan.deliver(started[:1])
    dan.go()
    dan.give_back()
    dan.give_back()
    stage.clock.forward(61)
    stage.worker("ed").run()
    stage.snapshot()


def silences(redis: Database) -> None:
    """Silences that begin, suppress what fires, and end: by the clock, since nothing matches or fires, and by hand."""
    stage = QuietStage(redis, DEFERRING)
    ann = stage.worker()

    def add(matcher: str, seconds: int, **facts: Any) -> str:  # noqa: ANN401 - a Wanted's
        return stage.silencing.begin(Wanted(parse_matchers([matcher]), seconds * US, "ed", "known", **facts)).id

    add("host=db1", 600, until_resolved=True)
    add("host=db*", 300, idle_us=60 * US)
    by_word = add("team=web", 600)
    add("team=none", 30, reports=False)
    add("host=later", 60, from_us=stage.clock.now_us + 30 * US)
    stage.send("a", "b", labels={"host": "db1"}, dedup_key="x")
    stage.send("c", "d", category="chatter", labels={"host": "db2"}, dedup_key="y")
    stage.send("e", category="other", labels={"team": "web"}, channel="#p")
    stage.send("f", category="chatter", labels={"team": "none"})
    taken = ann.take()
    stage.silencing.expire(by_word)
    stage.silencing.expire(by_word)
    ann.finish(taken)
    explain_all(stage, "a", "c")
    stage.snapshot()
    stage.clock.forward(31)
    stage.send("g", category="chatter", labels={"host": "later"})
    ann.run()
    stage.send("r", dedup_key="x", status="resolved")
    stage.send("s", category="chatter", dedup_key="y", status="resolved")
    ann.run()
    for seconds in (2, 60, 2, 60):
        stage.clock.forward(seconds)
        ann.run()
    add("host=web", 60)
    stage.send("h", labels={"host": "web"})
    ann.run()
    stage.clock.forward(60)
    ann.run()
    ann.desk.reply = lambda _: Rejected("channel_not_found", "there is none")
    stage.clock.forward(2)
    ann.run()
    stage.snapshot()


def by_hand(redis: Database) -> None:
    """Mutes, pauses and cancels of an operator."""
    stage = QuietStage(redis, DEFERRING)
    ann = stage.worker()
    muting = stage.silencing
    pausing = stage.pausing
    muting.mute("errors", 600_000_000, "ed", "known")
    muting.mute("chatter", 10_000_000, "ed", "known")
    stage.send("a", "b", labels={"host": "db1"})
    stage.send("c", "d", category="chatter")
    stage.send("e", category="other", channel="#p")
    ann.run()
    stage.snapshot()
    explain_all(stage, "a", "c")
    stage.clock.forward(11)
    muting.unmute("errors")
    muting.unmute("errors")
    muting.mute("errors", 5_000_000, "ed", "again")
    ann.run()
    stage.clock.forward(6)
    ann.run()
    pausing.pause("other", "ed", "maintenance")
    stage.send("f", "g", category="other")
    stage.send("h", category="chatter")
    ann.run()
    stage.snapshot()
    explain_all(stage, "f")
    pausing.pause("*", "ed")
    pausing.pause("*", "ed")
    stage.send("i", "j", category="chatter")
    stage.clock.forward(61)
    ann.run()
    explain_all(stage, "i")
    pausing.resume("other")
    pausing.resume("*")
    pausing.resume("*")
    ann.run()
    pausing.pause("errors", "ed")
    stage.send(*(f"k{n}" for n in range(9)))
    stage.send("l", "m", "n", category="other", channel="#p")
    answer_all(ann, DOWN)
    ann.run()
    cancel_all(stage)
    stage.snapshot()


def repeats_and_recoveries(redis: Database) -> None:
    """Events about the same thing: refused, counted, cancelled while they wait, edited, and posted again."""
    text = (
        f"{FREE}global: {{limits: []}}\ndefaults: {{limits: [], channel: '#free'}}\ncategories:\n"
        "  counted: {once: {per: 1h, then: edit}}\n"
        "  labels: {once: {by: [host], per: 1h}, limits: [2/1m], on_limit: digest}\n"
        "  later: {once: {per: 1h}, limits: [1/1m], on_limit: defer, max_parked: 3}\n"
        "  slow: {channel: '#slow'}\n"
    )
    stage = QuietStage(redis, text)
    ann, bob = stage.worker("ann"), stage.worker("bob")
    for name in ("counted", "labels", "later", "slow"):
        about: dict[str, Any] = {"category": name, "dedup_key": "db1", "labels": {"host": "db1"}}
        stage.send(f"{name}-1", f"{name}-2", **about)
        stage.send(f"{name}-3", category=name, dedup_key="db2", labels={"host": "db2"})
        started = ann.go()
        stage.send(f"{name}-4", **about)
        stage.send(f"{name}-over", status="resolved", **about)
        ann.go()
        explain_all(stage, f"{name}-2", f"{name}-3", f"{name}-over")
        ann.deliver(started)
        ann.run()
        stage.send(f"{name}-5", f"{name}-6", **about)
        stage.send(f"{name}-old", created_at=1.0, **about)
        ann.run()
        stage.clock.forward(61)
        stage.send(f"{name}-over2", status="resolved", **about)
        ann.go()
        stage.clock.forward(61)
        bob.run()
        explain_all(stage, f"{name}-old", f"{name}-over2")
    stage.send("counted-7", "counted-8", category="counted", dedup_key="db3")
    answer_all(ann, GONE)
    ann.run()
    stage.clock.forward(3_600)
    ann.run()


def letters(redis: Database) -> None:
    """Dead letters: made, replayed, made again, purged, trimmed."""
    text = (
        f"{FREE}global: {{limits: [20/30m]}}\ndefaults: {{limits: [3/30m], channel: '#free', on_limit: dead-letter}}\n"
    )
    stage = QuietStage(redis, text)
    stage.bounds = Bounds(4, 3_600_000_000, 30)
    ann = stage.worker()
    dead = stage.dead_letters
    stage.send(*(f"a{n}" for n in range(6)))
    ann.run()
    found = list(dead.find(Filter()))
    explain_all(stage, "a5")
    dead.replay([*found, *found])
    dead.replay(found)
    explain_all(stage, "a5")
    stage.send("a5", "fresh")
    ann.run()
    stage.send("gone", category="other")
    answer_all(ann, GONE)
    redis.rpush(stage.queue.lane(Lane.NORMAL), "no-such-job")
    ann.run()
    found = list(dead.find(Filter()))
    redis.hset(stage.queue.job(found[0].id), mapping={"status": "finished"})
    redis.hset(stage.queue.job(found[1].id), mapping={"status": "started"})
    for letter in found:
        dead.replay([letter])
    ann.run()
    found = list(dead.find(Filter()))
    dead.purge(found[:1])
    stage.send(*(f"b{n}" for n in range(6)))
    ann.run()
    dead.trim(Bounds(2, 3_600_000_000, 30))
    stage.clock.forward(7_200)
    dead.trim(Bounds(2, 3_600_000_000, 30))
    stage.send("old", category="other", channel="#p", max_age=5.0)
    stage.send("older", category="other", channel="#p", max_age=6.0)
    stage.send("oldest", category="other", channel="#p", max_age=7.0)
    ann.go()
    stage.clock.forward(8)
    stage.worker("bob").run()
    stage.snapshot()


def versions(redis: Database) -> None:
    """Limits that change while events wait, are in hand, or are being posted."""
    stage = QuietStage(redis, DEFERRING)
    ann = stage.worker()
    first = stage.put_in_force(DEFERRING)
    ann.follow(first)
    stage.send(*(f"a{n}" for n in range(5)))
    stage.send("p", "q", category="other", channel="#p")
    ann.deliver(ann.go())
    stage.send("r", "s", category="other", channel="#p")
    started = ann.go()
    stage.send("b", "c", category="deploys")
    batch = ann.take().batch
    second = stage.put_in_force(
        DEFERRING.replace("9/1m", "{max: 12, window: 1m, shadow: true}, 10/1m").replace("1/1s", "3/1s")
    )
    undecided: Sequence[object] = ()
    try:
        ann.dispatch(batch)
    except Overtaken as overtaken:
        undecided = overtaken.undecided
        ann.follow(second)
        ann.deliver(ann.dispatch(overtaken.undecided))
    if not undecided:
        raise AssertionError("the batch was not overtaken")
    ann.deliver(started)
    stage.clock.forward(2)
    ann.run()
    bob = stage.worker("bob")
    bob.take()
    stage.versions.publish("x", "x", by="ed", file="f", unless=Unless.ANY)
    stage.versions.publish("x", "x", by="ed", file="f", unless=Unless.KNOWN)
    stage.versions.publish("x", "x", by="ed", file="f", unless=Unless.KNOWN)
    stage.clock.forward(61)
    bob.run()
    cancel_all(stage)


def stock(redis: Database) -> None:
    """What a stock worker takes, begins, and leaves behind."""
    stage = QuietStage(redis, f"{FREE}global: {{limits: [20/30m]}}\ndefaults: {{limits: [9/30m], channel: '#free'}}\n")
    claim_namespace(redis, stage.keys, stage.queue)
    claim_namespace(redis, stage.keys, stage.queue)
    foreign = replace(stage.keys, namespace="other")
    try:
        claim_namespace(redis, foreign, stage.queue)
    except ConfigError:
        pass
    else:
        raise AssertionError("the queue of another namespace was claimed")
    claim_namespace(redis, foreign, QueueKeys("r"))
    ann = stage.worker()
    lane = stage.queue.lane(Lane.NORMAL)
    stage.send("a", "b", "c", "d", "e")
    redis.lpop(lane, 5)
    taken = ann.outbox.adopt("a", seal(Event("errors", "text", id="a")))
    ann.outbox.adopt("a", seal(Event("errors", "text", id="a")))
    ann.outbox.adopt("nobody", seal(Event("errors", "text")))
    ann.outbox.adopt("undecodable", "no event")
    redis.rpush(f"{lane}:intermediate", "b", "nobody knows")
    redis.zadd(stage.queue.failed(Lane.NORMAL), {"c": 1, "a": 1})
    redis.zadd(stage.queue.deferred(Lane.NORMAL), {"d": 1})
    redis.sadd("rq:job::d:dependencies", "c")
    redis.sadd("rq:job:c:dependents", "d")
    redis.zadd(stage.queue.started(Lane.NORMAL), {"e:1": 1})
    sweep = Sweep(redis, stage.keys, stage.queue, owner="ann", clock=stage.clock)
    sweep.sweep()
    removals = Removals(redis, stage.keys, clock=stage.clock)
    removals.find(100)
    redis.delete(stage.queue.job("e"))
    removals.find(100)
    explain_all(stage, "a", "b", "c", "e")
    stage.clock.forward(61)
    sweep.sweep()
    ann.deliver(ann.dispatch(taken.batch))
    ann.run()
    stage.clock.forward(601)
    sweep.sweep()
    removals.find(100)
    removals.find(100)


def stock_storm(redis: Database) -> None:
    """Jobs of a stock producer, of a category over its limit."""
    text = f"{FREE}global: {{limits: []}}\ndefaults: {{limits: [1/30m], channel: '#free'}}\n"
    stage = QuietStage(redis, text)
    ann = stage.worker()
    ann.follow(stage.put_in_force(text))
    stage.send("a", "b")
    ann.run()
    for first, category in (("c", "errors"), ("d", "errors"), ("e", "other"), ("f", "errors")):
        stage.send(*(f"{first}{n}" for n in range(12)), category=category)
        for n in range(12):
            redis.hdel(stage.queue.job(f"{first}{n}"), "category", "shown")
    stage.send("marked", priority=Lane.HIGH)
    redis.rpush(stage.queue.lane(Lane.LOW), "no-such-job")
    while taken := ann.take(1).batch:
        ann.deliver(ann.dispatch(taken))
    ann.run()
    stage.snapshot()


def full_queue(redis: Database) -> None:
    """Producers: many events, known ids, a queue that is full or somebody else's."""
    stage = QuietStage(redis, f"{FREE}global: {{limits: []}}\ndefaults: {{limits: [], channel: '#free'}}\n")
    ann = stage.worker()
    stage.send("a", "b", priority=Lane.HIGH)
    stage.send("c", "a", priority=Lane.LOW)
    ann.run()
    stage.send("a", "d")
    stage.send_unnamed()
    redis.rpush(stage.queue.lane(Lane.LOW), *map(str, range(996)))
    stage.send("e", "f", "g")
    redis.set(stage.keys.layout, "0")
    _refused(stage)
    redis.delete(stage.keys.layout)
    redis.set(stage.queue.binding, "other")
    _refused(stage)


def _refused(stage: Stage) -> None:
    try:
        stage.send("z")
    except ConfigError:
        return
    raise AssertionError("a queue that is somebody else's took an event")


def limiter(redis: Database) -> None:
    """The library: single calls, batches, peeks, kinds of limits, alternatives, releases, versions."""
    now = [1_732_100_000_000_000]
    limits = Limiter(redis, namespace="shop", clock=lambda: now[0])
    user = Scope("user", (Limit.parse("3/1s"), Limit.parse("5/1m")))
    quota = Scope("quota", (Limit.parse("4/1h fixed"),))
    log = Scope("log", (Limit.parse("3/1m"),), ids=False)
    counted = Scope("counted", (Limit.parse("3/1m fixed"),), ids=False)
    reserved, shared = Scope("reserved", (Limit.parse("1/1m"),)), Scope("shared", (Limit.parse("2/1m"),))
    either = FirstOf((reserved, shared))
    limits.usage_many([user, quota, log, counted, reserved])
    for n in range(5):
        limits.try_acquire(user, f"u{n}")
        limits.try_acquire([user, quota], f"v{n}")
        limits.try_acquire([log, counted])
        limits.try_acquire(either, f"w{n}")
        now[0] += 300_000
    limits.try_acquire(user, "u0")
    limits.try_acquire_many([user, quota, user, [log, counted]] * 3)
    limits.try_acquire_many([user] * 4, ["u0", "u7", "u8", "u0"])
    limits.peek([user, quota], "u0")
    limits.usage_many([user, quota, log, counted, reserved])
    limits.release([user, quota], "u0")
    limits.release([user, quota], "nobody")
    limits.enforce("7")
    limits.try_acquire(user, version="7")
    try:
        limits.try_acquire(user, version="6")
    except Exception as error:  # noqa: BLE001 - whatever it is called, it is a refusal
        del error
    now[0] += 61_000_000
    limits.usage(user)
    limits.try_acquire([user, log, counted])
    now[0] -= 30_000_000
    limits.try_acquire([user, log], "back")
    limits.try_acquire([user, log, counted], "back", with_left=True)
    limits.reset([user, log, counted])
    limits.try_acquire([user, log, counted], "back", with_left=True)
    limits.reset(user)
    limits.reset(user)


def waiting(redis: Database) -> None:
    """Who waits for a slot: in order, woken, gone."""
    now = 1_732_100_000_000_000
    script, release, calls = Script(redis, "wait"), Script(redis, "release"), Calls("shop")
    user = Scope("user", (Limit.parse("2/1m"),))
    reserved, shared = Scope("reserved", (Limit.parse("1/1m"),)), Scope("shared", (Limit.parse("1/1m"),))
    either = FirstOf((reserved, shared))

    def turn(
        slot: str, step: Step, after_us: int, *, of: Sequence[Scope | FirstOf] = (user,), arrived: str | None = None
    ) -> None:
        call = calls.wait([WaitingRequest((slot, tuple(of)), f"bell:{slot}", step, arrived)])
        script(call.keys, call.arguments(now + after_us))

    with redis.pubsub() as listener:
        listener.subscribe(calls.keys.bells + "bell")
        listener.get_message(timeout=5)
        for n, slot in enumerate("ab"):
            turn(slot, "ask", n)
        for n, slot in enumerate("cdef"):
            turn(slot, "ask", 10 + n)
            turn(slot, "join", 20 + n)
        call = calls.release("a", [user])
        release(call.keys, call.arguments(now + 30))
        turn("c", "join", 31, arrived=str(now + 20))
        turn("d", "quit", 32)
        turn("e", "leave", 33, arrived=str(now + 22))
        turn("g", "join", 40, of=(user, either))
        turn("h", "join", 41, of=(either,))
        turn("i", "join", 42, of=(either,))
        turn("j", "join", 43, of=(either,))
        turn("f", "join", 60_000_000, arrived=str(now + 23))
        turn("k", "join", 63_000_000)
        turn("j", "join", 63_000_001, of=(either,), arrived=str(now + 43))
        call = calls.release("f", [user, reserved])
        release(call.keys, call.arguments(now + 63_000_010))
    turn("l", "join", 63_000_020)
    turn("m", "join", 63_000_021)
    reset, call = Script(redis, "reset"), calls.reset([user, Scope("log", "1/1m", ids=False)])
    reset(call.keys, call.arguments(now + 63_000_030))
    call = calls.release("nobody", [user])
    release(call.keys, call.arguments(now + 64_000_000))


SCENES: Final[dict[str, Scene]] = {
    scene.__name__: scene
    for scene in (
        storm, paced, deferral, digest, digest_once, buffered_single, notice, trouble, history_scans, takeovers,
        by_hand, silences, repeats_and_recoveries, letters, versions, stock, stock_storm, full_queue, limiter, waiting,
    )
}  # fmt: skip
