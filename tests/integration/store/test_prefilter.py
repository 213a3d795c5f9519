"""The pre-check: what a limit refuses anyway is dropped as it is taken, as the gate would. In made-up time."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Final

import pytest
from redis.exceptions import ResponseError

from dispatcher.core.event import Event
from dispatcher.core.explain import Decision
from dispatcher.core.limits import Bounds, Denied, Limit, Reason
from dispatcher.core.posts import Receipt, Rejected, Retryable
from dispatcher.core.states import Leased, Prefiltered
from dispatcher.core.units import US, Lane
from dispatcher.store.admission import IDLE_S, MOST_CATEGORIES
from dispatcher.store.dead_letters import Filter
from dispatcher.store.intake import Intake, seal
from dispatcher.store.leases import Taken
from tests.support.deferral import keep_beating
from tests.support.doubles import START_US
from tests.support.extent import slow_except
from tests.support.servers import Database, RedisServer
from tests.support.stage import BACKOFF_US, REMEMBER_US, UNPACED, Stage, Worker, gone, handed_out

HALF_HOUR_US: Final = 1_800 * US
DAY_US: Final = 86_400 * US
CHANNELS: Final = f'channels: {{"{UNPACED}": {{pace: none}}}}\n'
OURS: Final = f'{CHANNELS}global: {{limits: []}}\ndefaults: {{limits: [1/30m], channel: "{UNPACED}"}}\n'
"""One of each category in half an hour."""
MOST: Final = 1_024
"""The largest DISPATCHER_BATCH."""


def close(stage: Stage, text: str = OURS, *categories: str, owner: str = "ann") -> Worker:
    """A worker whose gate has admitted one event of each category, and has refused another."""
    worker = stage.worker(owner)
    worker.follow(stage.put_in_force(text))
    for category in categories or ("errors",):
        stage.send(f"{category}-sent", f"{category}-dropped", category=category)
    worker.run()
    return worker


@pytest.fixture
def ann(stage: Stage) -> Worker:
    return close(stage)


def without_prefilter(stage: Stage) -> Worker:
    """Another worker by the same limits, who has not heard yet that anything is over them."""
    version = stage.versions.in_force()
    assert version is not None
    worker = stage.worker("bob")
    worker.follow(version)
    return worker


def record(stage: Stage, id_: str) -> Decision | None:
    """What the decision record says of an event that a limit suppressed."""
    found = stage.decision(id_)
    return found and replace(found, id="", text=None) if stage.redis.hexists(stage.keys.decisions[0], id_) else None


def refusal_by_both(stage: Stage, ann: Worker, bob: Worker) -> Decision:
    """What the record says of an event that the pre-check drops; it says the same of one that the gate refuses."""
    stage.send("a")
    assert gone(ann.take()) == ["a"]
    stage.send("twin")
    bob.run()
    found = record(stage, "a")
    assert found is not None
    assert found == record(stage, "twin")
    return found


def push_again(stage: Stage, *ids: str) -> None:
    """The ids once more, on jobs of ours, without looking whether they are known."""
    for id_ in ids:
        stage.redis.hset(f"rq:job:{id_}", mapping={"data": seal(Event("errors", "again")), "category": "errors 1"})
        stage.redis.rpush(stage.queue.lane(Lane.NORMAL), id_)


# What is over a limit is dropped as it is taken


def test_an_event_over_its_limit_is_dropped_as_it_is_taken(stage: Stage, ann: Worker) -> None:
    stage.clock.forward(60)
    stage.send("a", "b")
    taken = ann.take()
    denied = Denied("category:errors", Limit.parse("1/30m"), HALF_HOUR_US - 60 * US)
    assert (taken.batch, taken.prefiltered) == ([], [Prefiltered("errors", denied, ["a", "b"], stage.clock.now_us)])
    snapshot = stage.snapshot()
    assert (snapshot.received, snapshot.totals["dropped"], snapshot.by_category("dropped")) == (4, 3, {"errors": 3})
    assert (snapshot.leased, stage.redis.exists(stage.keys.events, stage.keys.leased("ann"))) == (0, 0)
    assert stage.redis.exists("rq:job:a", "rq:job:b") == 0
    assert not taken.more


def test_of_two_limits_that_refuse_until_the_same_instant_the_gate_and_the_prefilter_name_the_same(
    stage: Stage,
) -> None:
    ann = close(stage, OURS.replace("global: {limits: []}", "global: {limits: [1/30m]}"))
    bob = without_prefilter(stage)
    assert refusal_by_both(stage, ann, bob).scope == "global"


@pytest.mark.parametrize("windows", ["1/10s, 2/20s", "2/20s, 1/10s"])
def test_of_two_windows_that_refuse_until_the_same_instant_the_gate_and_the_prefilter_name_the_first(
    stage: Stage, windows: str
) -> None:
    ann = close(stage, OURS.replace("1/30m", windows))
    bob = without_prefilter(stage)
    stage.clock.forward(10)
    stage.send("sent", "dropped")
    ann.run()
    assert refusal_by_both(stage, ann, bob).limit == windows.partition(",")[0]


def test_events_are_numbered_in_the_order_of_their_lane_whatever_is_dropped_beside_them(
    stage: Stage, ann: Worker
) -> None:
    before = int(stage.redis.get(stage.keys.seq) or 0)
    for id_, category in (("a", "errors"), ("b", "deploys"), ("c", "errors"), ("d", "deploys")):
        stage.send(id_, category=category)
    taken = ann.take()
    assert (gone(taken), handed_out(taken)) == (["a", "c"], ["b", "d"])
    assert [each.seq for each in taken.batch if isinstance(each, Leased)] == [before + 2, before + 4]


def test_a_worker_that_was_refused_nothing_hands_everything_to_its_gate(stage: Stage, ann: Worker) -> None:
    bob = without_prefilter(stage)
    stage.send("a")
    assert handed_out(bob.take()) == ["a"]
    stage.send("b")
    assert gone(ann.take()) == ["b"]


def test_the_record_of_a_drop_by_the_prefilter_is_that_of_a_drop_by_the_gate(stage: Stage, ann: Worker) -> None:
    stage.clock.forward(7.000001)
    refusal_by_both(stage, ann, without_prefilter(stage))
    (dropped,) = (each for each in stage.decisions.newest() if each.id == "a")
    assert (dropped.at_us, dropped.fits_at_us) == (START_US + 7 * US + 1, START_US + HALF_HOUR_US)
    assert (dropped.outcome, dropped.category, dropped.reason) == ("dropped", "errors", "limit:category")
    assert (dropped.scope, dropped.limit) == ("category:errors", "1/30m")


def test_a_failure_behind_its_recovery_is_no_repeat_of_the_failure_that_is_over(stage: Stage) -> None:
    ann = stage.worker("ann")
    once = f'defaults: {{limits: [], channel: "{UNPACED}", once: {{per: 1h}}}}\n'
    ann.follow(stage.put_in_force(f"{CHANNELS}global: {{limits: []}}\n{once}"))
    for id_ in ("f", "f-again"):
        stage.send(id_, dedup_key="db1")
        ann.run()
    stage.send("f-again2", dedup_key="db1")
    assert gone(ann.take()) == ["f-again2"]
    stage.send("r", dedup_key="db1", status="resolved")
    stage.send("g", "g-again", dedup_key="db1")
    ann.run()
    assert ann.desk.posts == ["f", "g"]


@pytest.mark.parametrize("fits", [False, True])
def test_at_the_very_microsecond_of_the_room_nothing_is_dropped(stage: Stage, ann: Worker, *, fits: bool) -> None:
    """Also where its worker still names the category."""
    denied = Denied("category:errors", Limit.parse("1/30m"), DAY_US)
    ann.prefilter.add("errors", ann.policy.scopes("errors"), denied, configured=False)
    stage.clock.now_us += HALF_HOUR_US - (not fits)
    stage.send("a", "b")
    taken = ann.take()
    if fits:
        assert (handed_out(taken), taken.prefiltered) == (["a", "b"], [])
        ann.deliver(ann.dispatch(taken.batch))
        assert (stage.total("sent"), stage.total("dropped")) == (2, 2)
    else:
        assert (taken.batch, gone(taken)) == ([], ["a", "b"])
        assert taken.prefiltered[0].denied.retry_after_us == 1


def test_the_prefilter_forgets_a_category_when_its_limit_has_room(stage: Stage, ann: Worker) -> None:
    stage.clock.now_us += HALF_HOUR_US
    assert ann.prefilter.call() is None
    stage.send("a")
    ann.run()
    assert stage.total("sent") == 2


def test_events_of_other_categories_are_handed_out_in_between(stage: Stage, ann: Worker) -> None:
    stage.send("a1")
    stage.send("b1", "b2", category="deploys")
    stage.send("a2")
    stage.send("b3", category="deploys")
    taken = ann.take()
    assert (handed_out(taken), gone(taken)) == (["b1", "b2", "b3"], ["a1", "a2"])
    assert stage.slots("category:deploys") == {}, "nobody is admitted by the pre-check"


def test_a_global_limit_closes_the_prefilter_for_the_category_that_it_refused(stage: Stage) -> None:
    text = f'{CHANNELS}global: {{limits: [2/30m]}}\ndefaults: {{limits: [], channel: "{UNPACED}"}}\n'
    ann = close(stage, text)
    stage.send("x1", "x2", category="deploys")
    stage.send("a")
    ann.run()  # the gate refuses one of deploys, and drops what has no room at all
    taken_before = stage.total("dropped")
    stage.send("b")
    stage.send("y", category="deploys")
    taken = ann.take()
    limit = Limit.parse("2/30m")
    assert taken.prefiltered == [
        Prefiltered("errors", Denied("global", limit, HALF_HOUR_US), ["b"], START_US),
        Prefiltered("deploys", Denied("global", limit, HALF_HOUR_US), ["y"], START_US),
    ]
    found = record(stage, "b")
    assert found is not None
    assert found.reason == Reason.LIMIT_GLOBAL
    assert stage.total("dropped") == taken_before + 2


SHARES: Final = f"""\
{CHANNELS}global: {{limits: [3/30m]}}
defaults: {{limits: [], channel: "{UNPACED}"}}
categories:
  errors: {{guarantee: 1}}
"""


def test_a_guaranteed_category_is_refused_only_when_its_share_and_what_all_share_are_full(stage: Stage) -> None:
    ann = stage.worker("ann")
    ann.follow(stage.put_in_force(SHARES))
    stage.send("d1", "d2", "d3", category="deploys")
    ann.run()
    scopes, limit = ann.policy.scopes("errors"), Limit.parse("1/30m")
    ann.prefilter.add("errors", scopes, Denied("guarantee:errors", limit, HALF_HOUR_US), configured=True)
    stage.clock.forward(5)
    stage.send("e1")
    stage.send("d4", category="deploys")
    taken = ann.take()
    assert (handed_out(taken), gone(taken)) == (["e1"], ["d4"])
    assert taken.prefiltered[0].denied == Denied("shared", Limit.parse("2/30m"), HALF_HOUR_US - 5 * US)
    ann.deliver(ann.dispatch(taken.batch))
    refusal_by_both(stage, ann, without_prefilter(stage))
    assert stage.total("sent") == 3


def test_an_aligned_window_opens_at_its_end(stage: Stage) -> None:
    ann = close(stage, OURS.replace("1/30m", "1/1d fixed"))
    end_us = (START_US // DAY_US + 1) * DAY_US
    denied = Denied("category:errors", Limit.parse("1/1d fixed"), 9 * DAY_US)
    ann.prefilter.add("errors", ann.policy.scopes("errors"), denied, configured=False)
    stage.clock.now_us = end_us - 1
    stage.send("a")
    (group,) = ann.take().prefiltered
    assert (group.names, group.denied) == (["a"], Denied("category:errors", Limit.parse("1/1d fixed"), 1))
    stage.clock.now_us = end_us
    stage.send("b")
    assert handed_out(ann.take()) == ["b"]


def test_of_several_limits_the_one_that_frees_up_last_is_told_and_on_record(stage: Stage) -> None:
    text = OURS.replace("[1/30m]", "[2/1m, 3/30m]").replace("limits: []", "limits: [50/30m]")
    ann = stage.worker("ann")
    ann.follow(stage.put_in_force(text))
    stage.send("a", "b", "c")
    ann.run()
    stage.send("d")
    (first,) = ann.take().prefiltered
    assert first.denied == Denied("category:errors", Limit.parse("2/1m"), 60 * US)
    stage.clock.forward(60)
    stage.send("e", "f")
    ann.run()
    stage.send("g")
    (second,) = ann.take().prefiltered
    assert second.denied == Denied("category:errors", Limit.parse("3/30m"), HALF_HOUR_US - 60 * US)
    found = [stage.decision(id_) for id_ in ("d", "g")]
    assert [(each.scope, each.limit) for each in found if each] == [
        ("category:errors", "2/1m"),
        ("category:errors", "3/30m"),
    ]


def test_a_held_slot_refuses_by_the_prefilter_too(stage: Stage) -> None:
    """What was admitted and waits for its channel has its place, also when the window is over."""
    ann = close(stage)
    stage.clock.now_us += HALF_HOUR_US
    stage.send("held")
    (started,) = ann.go()
    ann.answer(started, Retryable("refused", "connection refused"))
    assert stage.held("category:errors").keys() == {"held"}
    stage.send("refused")
    ann.go()
    stage.send("a")
    assert gone(ann.take()) == ["a"]


def test_by_the_prefilter_too_there_is_room_when_a_held_slot_ends(stage: Stage) -> None:
    ann = close(stage, OURS.replace("1/30m", "2/30m"))
    stage.clock.now_us += HALF_HOUR_US
    stage.send("posted")
    ann.run()
    stage.send("held", max_age=60)
    (started,) = ann.go()
    ann.answer(started, Retryable("refused", "connection refused"))
    stage.send("refused")
    ann.go()
    stage.clock.forward(1)
    stage.send("a")
    (dropped,) = ann.take().prefiltered
    assert dropped.names == ["a"]
    assert dropped.denied == Denied("category:errors", Limit.parse("2/30m"), 59 * US)


def test_categories_that_no_limits_file_names_are_counted_by_name_only_when_they_come(stage: Stage) -> None:
    ann = close(stage, OURS + "categories: {errors: {}}\n", "errors", "mystery")
    stage.redis.delete(stage.keys.names)
    stage.send("e")
    stage.send("m", category="mystery")
    assert gone(ann.take()) == ["e", "m"]
    assert stage.redis.zrange(stage.keys.names, 0, -1) == [b"mystery"]
    assert stage.snapshot().by_category("dropped") == {"errors": 2, "mystery": 2}


def test_beyond_as_many_names_as_are_kept_others_are_counted_as_other(stage: Stage, ann: Worker) -> None:
    stage.redis.delete(stage.keys.names)
    stage.redis.zadd(stage.keys.names, {f"name{n}": n for n in range(1_000)})
    stage.send("a", "b")
    assert gone(ann.take()) == ["a", "b"]
    assert stage.snapshot().by_category("dropped") == {"errors": 1, "other": 2}


def test_no_more_decisions_are_kept_than_may(stage: Stage, ann: Worker) -> None:
    version = stage.versions.in_force()
    assert version is not None
    ann.outbox.follow(version.name, Bounds(decisions=8))
    for n in range(9):
        stage.send(f"e{n}")
        assert gone(ann.take()) == [f"e{n}"]
        assert stage.redis.hlen(stage.keys.decisions[0]) <= 4 + 1
    assert record(stage, "e8") is not None


@pytest.mark.parametrize(("decisions", "text"), [("", "disk full"), ("decisions: {text: 0}\n", None)])
def test_text_and_labels_of_what_the_prefilter_drops_are_on_record(
    stage: Stage, decisions: str, text: str | None
) -> None:
    ann = close(stage, OURS + decisions)
    event = Event("errors", "disk\nfull", id="a", labels={"path": '",{x'}, channel=UNPACED)
    stage.intake.enqueue([("a", event)])
    assert gone(ann.take()) == ["a"]
    found = stage.decision("a")
    assert found is not None
    assert (found.text, found.labels) == (text, event.labels)


@pytest.mark.parametrize(
    "shown", ['"no JSON', '"a",{}]\n["b","forged",{}', f'"{"x" * 3_000}",{{}}', '"x",[1]'], ids=lambda each: each[:9]
)
def test_what_somebody_else_has_written_into_a_mark_spoils_no_record(stage: Stage, ann: Worker, shown: str) -> None:
    stage.send("a", channel=UNPACED)
    stage.redis.hset("rq:job:a", "shown", shown)
    assert gone(ann.take()) == ["a"]
    newest = list(stage.decisions.newest())
    assert [each.id for each in newest] == ["a", "errors-dropped", "errors-sent"]
    assert newest[0].outcome == "dropped"
    assert (newest[0].text, newest[0].labels) == (None, {})


@pytest.mark.parametrize(("length", "is_kept"), [(2_048, True), (2_049, False)])
def test_the_record_takes_so_many_bytes_of_a_mark(stage: Stage, ann: Worker, length: int, *, is_kept: bool) -> None:
    text = "x" * (length - len('"",{}'))
    stage.send("a")
    stage.redis.hset("rq:job:a", "shown", f'"{text}",{{}}')
    assert gone(ann.take()) == ["a"]
    found = stage.decision("a")
    assert found is not None
    assert found.text == (text if is_kept else None)


# Ids


def test_an_id_that_was_dropped_by_the_prefilter_is_remembered_as_long_as_any(stage: Stage, ann: Worker) -> None:
    stage.send("a")
    assert gone(ann.take()) == ["a"]
    assert stage.redis.zscore(stage.keys.seen, "a") == START_US + REMEMBER_US
    kept_ms = REMEMBER_US // 1_000
    assert kept_ms - 10_000 < stage.redis.pttl(stage.keys.seen) <= kept_ms + 1
    row = record(stage, "a")
    stage.clock.now_us += 60 * US
    push_again(stage, "a")
    taken = ann.take()
    assert (taken.duplicates, taken.prefiltered, taken.batch) == (["a"], [], [])
    assert record(stage, "a") == row
    stage.clock.now_us = START_US + REMEMBER_US
    push_again(stage, "a")
    assert (ann.take().duplicates, handed_out(ann.take(0, 0))) == ([], [])


def test_an_id_whose_time_is_over_is_dropped_again(stage: Stage) -> None:
    stage.remember_us = 60 * US
    bob = close(stage, OURS, "deploys", owner="bob")
    stage.redis.zadd(stage.keys.seen, {"old": START_US, "other": START_US, "third": START_US, "fourth": START_US})
    stage.send("a", category="deploys")
    assert gone(bob.take()) == ["a"]
    assert stage.redis.zcount(stage.keys.seen, START_US, START_US) == 2, "twice as many are forgotten as are added"
    stage.clock.now_us += 60 * US - 1
    stage.redis.hset("rq:job:a", mapping={"data": "{}", "category": "deploys 1"})
    stage.redis.rpush(stage.queue.lane(Lane.NORMAL), "a")
    assert bob.take().duplicates == ["a"]
    stage.clock.now_us += 1
    stage.send("a", category="deploys")
    assert gone(bob.take()) == ["a"]


def test_generated_ids_are_not_remembered(stage: Stage, ann: Worker) -> None:
    id_ = stage.send_unnamed()
    known = stage.redis.zcard(stage.keys.seen)
    assert gone(ann.take()) == [id_]
    assert stage.redis.zcard(stage.keys.seen) == known
    assert record(stage, id_) is not None


def test_an_id_that_is_known_is_a_duplicate_and_not_dropped(stage: Stage) -> None:
    """Whatever became of the first: under a lease, waiting, dead or settled and remembered."""
    text = f"{OURS}categories: {{others: {{limits: []}}}}\n"
    ann, cid = close(stage, text), stage.worker("cid")
    stage.send("leased", "parked", "dead", "sent", category="others", channel=UNPACED)
    leased, parked, dead, sent = cid.go()
    cid.answer(parked, Retryable("refused", "connection refused"))
    cid.answer(dead, Rejected("is_archived", "archived"))
    cid.answer(sent, Receipt(UNPACED, "1.1"))
    push_again(stage, "leased", "parked", "dead", "sent")
    stage.send("new")
    dropped = stage.total("dropped")
    taken = ann.take()
    assert (taken.duplicates, gone(taken)) == (["leased", "parked", "dead", "sent"], ["new"])
    assert (stage.total("dropped"), stage.total("duplicate")) == (dropped + 1, 4)
    assert cid.answer(leased, Receipt(UNPACED, "1.2"))
    stage.clock.now_us += BACKOFF_US
    cid.run()
    assert stage.snapshot().by_category("sent") == {"errors": 1, "others": 3}


@pytest.mark.parametrize("second", list(Lane))
def test_an_id_that_lies_on_the_lanes_twice_is_dropped_once(stage: Stage, ann: Worker, second: Lane) -> None:
    stage.send("x")
    stage.redis.rpush(stage.queue.lane(second), "x")
    dropped = stage.total("dropped")
    taken = ann.take()
    assert (gone(taken), taken.duplicates, taken.batch) == (["x"], ["x"], [])
    assert (stage.total("dropped"), stage.total("duplicate")) == (dropped + 1, 1)
    found = record(stage, "x")
    assert found is not None
    assert found.outcome == "dropped"


# What is not for the pre-check


def test_a_replayed_dead_letter_is_not_dropped_by_the_prefilter(stage: Stage) -> None:
    ann, cid = close(stage), stage.worker("cid")
    stage.clock.now_us += HALF_HOUR_US
    stage.send("dead")
    (started,) = cid.go()
    cid.answer(started, Rejected("is_archived", "archived"))
    stage.send("fills", "refused")
    ann.run()
    stage.dead_letters.replay(stage.dead_letters.find(Filter()))
    stage.send("new")
    taken = ann.take()
    assert (handed_out(taken), gone(taken)) == (["dead"], ["new"])
    assert isinstance(taken.batch[0], Leased)
    assert taken.batch[0].replays == 1


def test_a_muted_category_is_handed_out(stage: Stage) -> None:
    ann = close(stage, OURS, "errors", "deploys")
    stage.silencing.mute("errors", 60 * US, "ops@here", "maintenance")
    stage.send("a")
    stage.send("b", category="deploys")
    taken = ann.take()
    assert (handed_out(taken), gone(taken)) == (["a"], ["b"])
    ann.dispatch(taken.batch, silences=taken.silences)
    found = record(stage, "a")
    assert found is not None
    assert found.reason == Reason.SILENCED


@pytest.mark.parametrize(
    "mark",
    ["", "errors", "errors ", "errors 2", "errors 10", " 1", "errors 1 ", "err ors 1", "errors  1", "1", "unknown 1"],
)
def test_a_job_that_bears_no_mark_of_ours_is_handed_out(stage: Stage, ann: Worker, mark: str) -> None:
    """Neither that of a stock RQ producer, nor one with a field of the same name."""
    stage.redis.hset("rq:job:x", "data", seal(Event("errors", "stock")))
    if mark:
        stage.redis.hset("rq:job:x", "category", mark)
    stage.redis.rpush(stage.queue.lane(Lane.NORMAL), "x")
    stage.send("ours")
    taken = ann.take()
    assert (handed_out(taken), gone(taken)) == (["x"], ["ours"])
    assert isinstance(taken.batch[0], Leased)
    assert taken.batch[0].event.text == "stock"


def test_a_job_of_another_type_is_handed_out(stage: Stage, ann: Worker) -> None:
    stage.redis.set("rq:job:x", "y")
    stage.redis.rpush(stage.queue.lane(Lane.NORMAL), "x")
    stage.send("ours")
    taken = ann.take()
    assert (handed_out(taken), gone(taken)) == (["x"], ["ours"])


@pytest.mark.parametrize(
    ("id_", "shown"),
    [
        ("a b", "a?b~7dbde935"),
        ("a:b", "a?b~dcea6d9c"),
        ("x" * 257, "x" * 247 + "~07960677"),
    ],
)
def test_an_event_whose_id_has_to_be_changed_is_handed_out(stage: Stage, ann: Worker, id_: str, shown: str) -> None:
    push_again(stage, id_)
    taken = ann.take()
    assert (handed_out(taken), taken.prefiltered) == ([shown], [])
    assert record(stage, id_) is None


@pytest.mark.parametrize("id_", ['a"b', "a*b", "a->b", "a.b/c~", "{a}"])
def test_an_event_whose_id_is_printable_is_dropped_under_it(stage: Stage, ann: Worker, id_: str) -> None:
    push_again(stage, id_)
    taken = ann.take()
    assert (handed_out(taken), gone(taken)) == ([], [id_])
    assert record(stage, id_) is not None
    assert not stage.redis.exists(f"rq:job:{id_}")


@pytest.mark.parametrize("rule", ["on_limit: defer", "on_limit: digest", "on_limit: dead-letter", "notice: true"])
def test_a_category_that_does_more_than_drop_stays_open(stage: Stage, rule: str) -> None:
    text = OURS.replace("1/30m]", "2/30m]") + f"categories: {{errors: {{{rule}}}}}\n"
    ann = close(stage, text)
    stage.send("third", "fourth")
    ann.run()
    stage.send("d1", "d2", "d3", category="deploys")
    ann.run()
    stage.send("a")
    stage.send("d4", category="deploys")
    taken = ann.take()
    assert (handed_out(taken), gone(taken)) == (["a"], ["d4"])


def test_a_category_with_limits_for_a_label_stays_open(stage: Stage) -> None:
    text = OURS + 'categories: {errors: {limits: [2/30m], per_label: {host: ["1/30m"]}}}\n'
    ann = close(stage, text)
    stage.send("b", labels={"host": "one"})
    stage.send("c")
    ann.run()
    assert stage.total("dropped") > 0
    stage.send("a")
    taken = ann.take()
    assert (handed_out(taken), gone(taken)) == (["a"], [])
    assert ann.prefilter.call() is None


def test_by_other_limits_than_those_in_force_nothing_is_dropped(stage: Stage, ann: Worker) -> None:
    second = stage.put_in_force(OURS.replace("1/30m", "2/30m"))
    stage.send("a", "b")
    taken = ann.take()
    assert (handed_out(taken), taken.prefiltered, taken.version) == (["a", "b"], [], second.name)


def test_the_prefilter_is_empty_after_a_change_of_limits(stage: Stage, ann: Worker) -> None:
    assert ann.prefilter.call() is not None
    ann.follow(stage.put_in_force(OURS.replace("1/30m", "2/30m")))
    assert ann.prefilter.call() is None
    stage.send("a", "b")
    ann.run()
    assert (stage.total("sent"), stage.total("dropped")) == (2, 2)


def test_while_all_is_suspended_nothing_is_looked_at(stage: Stage, ann: Worker, redis: Database) -> None:
    redis.set(stage.queue.suspended, 1)
    stage.send("a")
    taken = ann.take()
    assert (taken.batch, taken.prefiltered, taken.suspended) == ([], [], True)
    assert redis.llen(stage.queue.lane(Lane.NORMAL)) == 1


def test_a_worker_that_wants_nothing_new_drops_nothing(stage: Stage, ann: Worker) -> None:
    stage.send("a")
    taken = ann.take(new=0)
    assert (taken.batch, taken.prefiltered, taken.more) == ([], [], True)


# How many


def test_eight_times_as_many_are_looked_at_as_may_be_handed_out(stage: Stage, ann: Worker) -> None:
    stage.send(*(f"e{n}" for n in range(800)))
    stage.send("o0", "o1", "o2", category="others")
    taken = ann.take(new=100)
    assert (taken.batch, gone(taken)) == ([], [f"e{n}" for n in range(800)])
    assert taken.more
    assert handed_out(ann.take(new=2)) == ["o0", "o1"]


def test_the_largest_batch_of_all_may_be_dropped_at_once(stage: Stage, ann: Worker) -> None:
    """As many ids are remembered, and twice as many whose time has come are forgotten."""
    stage.intake = Intake(stage.redis, stage.keys, stage.queue, max_waiting=10_000, clock=stage.clock)
    for first in range(0, 2_100, 700):
        stage.send(*(f"e{n}" for n in range(first, first + 700)))
    stage.redis.zadd(stage.keys.seen, {f"old{n}": START_US - n for n in range(9_000)})
    most = MOST
    taken = ann.take(new=most)
    assert (taken.batch, gone(taken)) == ([], [f"e{n}" for n in range(most)])
    assert stage.redis.zcount(stage.keys.seen, START_US + 1, "+inf") == 2 + most
    assert stage.redis.zcount(stage.keys.seen, "-inf", START_US) == 9_000 - 2 * most
    assert stage.total("dropped") == 1 + most


def test_many_categories_take_several_calls_and_the_lane_low_has_its_share_of_each(stage: Stage) -> None:
    """A call ends those of some categories only: each costs time of its own."""
    categories = [f"c{n}" for n in range(300)]
    ann = close(stage, OURS, *categories)
    for category in categories:
        stage.send(f"{category}-more", category=category)
    stage.send("low", category="c299", priority=Lane.LOW)
    first = ann.take()
    assert (gone(first), first.more) == ([*(f"c{n}-more" for n in range(256)), "low"], True)
    second = ann.take()
    assert (gone(second), second.more) == ([f"c{n}-more" for n in range(256, 300)], False)


def test_the_rest_of_a_lane_with_many_categories_comes_before_lower_lanes(stage: Stage) -> None:
    categories = [f"c{n}" for n in range(300)]
    ann = close(stage, OURS, *categories)
    for category in categories:
        stage.send(f"{category}-more", category=category, priority=Lane.HIGH)
    stage.send("high", category="free", priority=Lane.HIGH)
    stage.send("normal", category="free")
    stage.send("low", category="free", priority=Lane.LOW)
    assert [handed_out(ann.take(new=100)) for _ in range(2)] == [["low"], ["high", "normal"]]


def test_a_category_with_events_is_named_longer_than_an_idle_one(stage: Stage) -> None:
    names = [f"c{n}" for n in range(MOST_CATEGORIES)]
    stage.intake = Intake(stage.redis, stage.keys, stage.queue, max_waiting=10_000, clock=stage.clock)
    ann = close(stage, OURS, *names)
    stage.clock.forward(IDLE_S)
    stage.send("of-c0", category="c0")
    assert gone(ann.take()) == ["of-c0"]
    stage.send("late-sent", "late-dropped", category="late")
    ann.run()
    stage.send("later-sent", "later-dropped", category="later")
    ann.run()  # within a second of the other: nothing is named in another's place
    for name in ("c0", "c1", "c2", "late"):
        stage.send(f"{name}-more", category=name)
    taken = ann.take()
    assert (handed_out(taken), sorted(gone(taken))) == (["c1-more"], ["c0-more", "c2-more", "late-more"])


def test_no_more_is_handed_out_than_asked_for(stage: Stage, ann: Worker) -> None:
    for n in range(120):
        stage.send(f"e{n}")
        stage.send(f"o{n}", category="others")
    taken = ann.take(new=70)
    assert (handed_out(taken), len(gone(taken))) == ([f"o{n}" for n in range(70)], 70)
    assert taken.more


def test_a_repeat_takes_a_place_as_one_that_is_handed_out(stage: Stage, ann: Worker) -> None:
    stage.send("e1")
    push_again(stage, "errors-sent", "errors-dropped")
    stage.send("o1", "o2", category="others")
    taken = ann.take(new=2)
    assert (gone(taken), taken.duplicates, taken.batch) == (["e1"], ["errors-sent", "errors-dropped"], [])
    assert handed_out(ann.take(new=2)) == ["o1", "o2"]


def test_no_more_are_looked_at_while_nothing_is_refused(stage: Stage) -> None:
    ann = stage.worker("ann")
    ann.follow(stage.put_in_force(OURS))
    stage.send(*(f"e{n}" for n in range(12)))
    assert len(ann.taken(new=4)) == 4
    assert stage.snapshot().received == 4


def test_lanes_are_taken_in_order_and_in_the_order_of_each(stage: Stage, ann: Worker) -> None:
    for lane in (Lane.LOW, Lane.NORMAL, Lane.HIGH):
        for n in (1, 2):
            stage.send(f"{lane}-e{n}", priority=lane)
            stage.send(f"{lane}-o{n}", category="others", priority=lane)
    taken = ann.take()
    lanes = [Lane.HIGH, Lane.NORMAL, Lane.LOW]
    assert handed_out(taken) == [f"{lane}-o{n}" for lane in lanes for n in (1, 2)]
    assert gone(taken) == [f"{lane}-e{n}" for lane in lanes for n in (1, 2)]
    assert [each.seen_us for each in taken.batch if isinstance(each, Leased)] == [START_US] * 6


def test_over_all_lanes_no_more_is_handed_out_and_looked_at_than_may(stage: Stage, ann: Worker) -> None:
    for lane, count in ((Lane.HIGH, 10), (Lane.NORMAL, 20)):
        stage.send(*(f"{lane}-o{n}" for n in range(2)), category="others", priority=lane)
        stage.send(*(f"{lane}-e{n}" for n in range(count)), priority=lane)
    first = ann.take(new=3)
    assert (handed_out(first), len(gone(first))) == (["high-o0", "high-o1", "normal-o0"], 10)
    second = ann.take(new=1)
    assert (handed_out(second), gone(second)) == (["normal-o1"], [])
    third = ann.take(new=1)
    assert gone(third) == [f"normal-e{n}" for n in range(8)]
    stage.send(*(f"more{n}" for n in range(3)), priority=Lane.HIGH)
    assert gone(ann.take(1, 0)) == ["more0", "more1", "more2", *(f"normal-e{n}" for n in range(8, 13))]


@pytest.mark.parametrize(
    ("on_high", "new"),
    slow_except(
        [("errors", 1), ("errors", 16), ("errors", 17), ("errors", 100), ("others", 100)],
        product(["errors", "others"], [1, 2, 3, 8, 15, 16, 17, 24, 100]),
    ),
)
def test_low_has_one_place_in_sixteen_of_what_is_looked_at_in_a_storm(
    stage: Stage, ann: Worker, new: int, on_high: str
) -> None:
    """Whether what storms is dropped by the pre-check, or all of it is handed out."""
    stage.send(*(f"h{n}" for n in range(450)), category=on_high, priority=Lane.HIGH)
    stage.send(*(f"n{n}" for n in range(450)), category=on_high)
    stage.send(*(f"l{n}" for n in range(90)), category="low", priority=Lane.LOW)
    looked = low = dropped = 0
    while looked < 500:
        taken = ann.outbox.take(new, 0)
        dropped += len(gone(taken))
        assert len(taken.batch) <= new
        looked += len(taken.batch) + len(gone(taken))
        low += sum(id_.startswith("l") for id_ in handed_out(taken))
    assert looked // 16 - 1 <= low <= looked // 16 + 1
    assert (dropped > 0) is (on_high == "errors")


# Nothing is lost


def test_a_scope_of_another_type_is_for_the_gate_to_complain_of(stage: Stage, ann: Worker, redis: Database) -> None:
    stage.send("a", "b")
    scope = stage.keys.scope("category:errors")
    redis.delete(scope)
    redis.set(scope, "x")
    taken = ann.outbox.take(100, 100)
    assert (handed_out(taken), taken.prefiltered) == (["a", "b"], [])
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        ann.dispatch(taken.batch)
    redis.delete(scope)
    ann.deliver(ann.dispatch(taken.batch))
    assert (stage.total("sent"), stage.total("dropped")) == (2, 2)


def test_a_full_server_is_emptied_by_the_prefilter(own_server: RedisServer) -> None:
    client: Database = own_server.client()
    stage = Stage(client)
    ann = close(stage)
    stage.send("a", "b")
    id_ = stage.send_unnamed()
    client.config_set("maxmemory", "1")
    taken = ann.take()
    client.config_set("maxmemory", "0")
    assert (taken.batch, gone(taken)) == ([], ["a", "b", id_])
    assert stage.total("dropped") == 4
    assert client.zscore(stage.keys.seen, "a") is not None
    assert record(stage, "b") is not None
    stage.check()
    client.close()


# Asked for ahead


def test_events_that_a_prefetched_batch_has_dropped_come_with_it(stage: Stage, ann: Worker) -> None:
    stage.send("o1", category="others")
    stage.send("a", "b")
    stage.send("o2", category="others")
    first = ann.outbox.take(1, 0)
    assert handed_out(first) == ["o1"]
    ann.outbox.prefetch(first, 1, 0)
    second = ann.take(1, 0)
    assert (handed_out(second), gone(second)) == (["o2"], ["a", "b"])


def test_a_batch_that_only_dropped_is_one_that_came(stage: Stage, ann: Worker) -> None:
    """Nothing is asked for in its place: its owner tells of it and comes again."""
    stage.send("o1", category="others")
    stage.send("a", "b")
    first = ann.outbox.take(1, 0)
    ann.outbox.prefetch(first, 2, 0)
    stage.send("o2", category="others")
    second = ann.take(2, 0)
    assert (second.batch, gone(second)) == ([], ["a", "b"])
    assert ann.outbox.ahead == 0
    assert handed_out(ann.take(2, 0)) == ["o2"]


@pytest.mark.parametrize("how", ["keep only", "give back"])
def test_events_dropped_by_a_prefetch_are_still_reported_when_the_rest_goes_back(
    stage: Stage, ann: Worker, how: str
) -> None:
    stage.send("o1", category="others")
    stage.send("a")
    push_again(stage, "errors-sent")
    stage.send("b")
    stage.send("o2", category="others")
    first = ann.outbox.take(1, 0)
    ann.outbox.prefetch(first, 1, 0)
    ann.outbox.prefetch(first, 1, 0)
    assert ann.outbox.ahead == 2
    assert (ann.keep_only("o1") if how == "keep only" else ann.give_back()) == 1 + (how == "give back")
    assert ann.outbox.ahead == 0
    assert [name for taken in ann.late for name in gone(taken)] == ["a", "b"]
    assert [id_ for taken in ann.late for id_ in taken.duplicates] == ["errors-sent"]


def park(stage: Stage, worker: Worker, *ids: str) -> None:
    """Admitted events whose posts failed, due after a while; Slack was reached between."""
    stage.send(*ids, category="others", channel=UNPACED)
    for started in worker.go():
        worker.answer(started, Retryable("refused", "connection refused"))
        stage.redis.delete(stage.keys.failing)
    stage.clock.now_us += BACKOFF_US


@pytest.fixture
def busy(stage: Stage) -> Worker:
    """A worker with nine admitted events that are due, and many new ones on the lanes."""
    worker = stage.worker("bob")
    park(stage, worker, *(f"due{n}" for n in range(9)))
    stage.send(*(f"new{n}" for n in range(20)), category="news", channel=UNPACED)
    return worker


def due_of(taken: Taken) -> int:
    return sum(id_.startswith("due") for id_ in handed_out(taken))


def test_a_prefetch_takes_no_more_due_events_than_senders_are_left(busy: Worker) -> None:
    first = busy.outbox.take(5, 3)
    assert (due_of(first), first.old, len(first.batch)) == (3, 3, 5)
    busy.outbox.prefetch(first, 4, 5)
    second = busy.outbox.take(4, 5)
    assert (due_of(second), second.old, len(second.batch)) == (2, 2, 4)


def test_two_prefetches_do_not_count_on_the_same_senders(busy: Worker) -> None:
    first = busy.outbox.take(2, 1)
    for _ in range(2):
        busy.outbox.prefetch(first, 6, 5)
    assert busy.outbox.ahead == 2
    batches = [busy.outbox.take(6, 5) for _ in range(2)]
    assert [due_of(each) for each in batches] == [4, 0]
    assert [len(each.batch) for each in batches] == [6, 6]
    busy.outbox.prefetch(batches[1], 6, 3)
    assert due_of(busy.outbox.take(6, 3)) == 3, "what has come is promised no more"


def test_more_than_senders_in_hand_asks_for_nothing_that_is_due(busy: Worker) -> None:
    first = busy.outbox.take(5, 4)
    busy.outbox.prefetch(first, 2, 3)
    assert handed_out(busy.outbox.take(2, 3)) == ["new2", "new3"]


def test_no_more_than_two_batches_are_asked_for_ahead(busy: Worker) -> None:
    first = busy.outbox.take(2, 0)
    for _ in range(3):
        busy.outbox.prefetch(first, 2, 0)
    assert busy.outbox.ahead == 2
    ids = [id_ for _ in range(2) for id_ in handed_out(busy.outbox.take(2, 0))]
    assert ids == ["new2", "new3", "new4", "new5"]


def is_asked_ahead(worker: Worker, taken: Taken) -> bool:
    worker.outbox.prefetch(taken, 2, 5)
    return worker.outbox.ahead > 0


def test_with_admitted_events_in_hand_a_batch_is_asked_for_ahead(busy: Worker) -> None:
    assert is_asked_ahead(busy, busy.outbox.take(2, 3))


def test_with_what_others_left_in_hand_or_waiting_nothing_is_asked_for_ahead(stage: Stage, busy: Worker) -> None:
    ann = stage.worker("cid")
    ann.take(3, 0)
    ann.give_back()
    left = busy.outbox.take(2, 0)
    assert (handed_out(left), left.undecided, left.more) == (["new0", "new1"], None, True)
    assert not is_asked_ahead(busy, left)
    waits = busy.outbox.take(0, 1)
    assert (due_of(waits), waits.undecided, waits.more) == (1, None, True)
    assert not is_asked_ahead(busy, waits)


def test_with_a_head_of_a_line_in_hand_nothing_is_asked_for_ahead(stage: Stage) -> None:
    text = f"{OURS}categories: {{later: {{on_limit: defer}}}}\n"
    ann = close(stage, text, "later")
    stage.clock.now_us += HALF_HOUR_US
    stage.send("n1", "n2", "n3")
    heads = ann.outbox.take(2, 5)
    assert (handed_out(heads), heads.undecided, heads.more) == (["later-dropped", "n1"], None, True)
    assert not is_asked_ahead(ann, heads)


def test_with_a_poison_candidate_in_hand_nothing_is_asked_for_ahead(stage: Stage, busy: Worker) -> None:
    for owner in ("cid", "dan"):
        stage.worker(owner).take(1, 0)
        keep_beating(stage, 40, "bob")
    candidate = busy.outbox.take(2, 5)
    assert (handed_out(candidate), candidate.undecided, candidate.more) == (["new0"], None, True)
    assert not is_asked_ahead(busy, candidate)


def test_nothing_is_prefetched_beside_a_poison_candidate_to_be_reconciled(stage: Stage) -> None:
    stage.send("x", channel=UNPACED)
    ann = stage.worker("ann")
    for owner in ("cid", "dan"):
        assert [each.candidate.leased.id for each in stage.worker(owner).go_on()] == ["x"]
        keep_beating(stage, 60, "ann")
    stage.send("new1", "new2")
    candidate = ann.outbox.take(1, 5)
    assert (handed_out(candidate), candidate.undecided, candidate.more) == (["x"], None, True)
    assert not is_asked_ahead(ann, candidate)


def first_of(taken: Taken) -> int | None:
    return taken.undecided and taken.undecided.seq


def test_the_in_progress_watermark_is_the_seq_of_the_first_new_event(busy: Worker) -> None:
    taken = busy.outbox.take(5, 3)
    seqs = [int(each.slot) for each in taken.batch if isinstance(each, Leased) and each.id.startswith("new")]
    assert first_of(taken) == min(seqs) == 10
    assert first_of(busy.outbox.take(0, 5)) == 12, "nothing to decide: whatever comes next"


def test_prefiltered_events_count_as_decided(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", "c")
    taken = ann.take()
    assert first_of(taken) == 2 + 3 + 1
    assert stage.redis.exists(stage.keys.deciding) == 0
