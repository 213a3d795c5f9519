"""The decision record, and events that limits drop together: each ends with its own reason, or not at all."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

import pytest

from dispatcher.core.event import Event
from dispatcher.core.explain import ended
from dispatcher.core.limits import Bounds, Limit, Reason
from dispatcher.core.pipeline import POST_S, Dispatcher
from dispatcher.core.policy import CategoryRule, OnLimit
from dispatcher.core.posts import Receipt, Rejected
from dispatcher.core.states import GRACE_US, Leased
from dispatcher.core.transitions import after_post
from dispatcher.core.units import US
from dispatcher.errors import GateUnavailable
from dispatcher.store.decisions import Decisions, Position
from dispatcher.store.leases import Outbox
from tests.support.doubles import START_US, Told
from tests.support.servers import Database, RedisServer
from tests.support.stage import BACKOFF_US, LEASE_US, REMEMBER_US, UNPACED, Stage, Worker, policy_of

WINDOW_US: Final = 1_800 * US
WEEK_MS: Final = 604_800_000


@pytest.fixture
def stage(redis: Database) -> Stage:
    """One event of each category is admitted; those of ``kept`` become dead letters then, all others are dropped."""
    policy = policy_of("", "1/30m")
    kept = CategoryRule((Limit.parse("1/30m"),), UNPACED, OnLimit.DEAD_LETTER, 86_400 * US)
    return Stage(redis, replace(policy, categories={"kept": kept}))


def kept_under(stage: Stage, name: str) -> set[str]:
    return {id_.decode() for id_ in stage.redis.hkeys(name)} - {""}


# The record


def test_the_outcome_of_an_event_is_on_record_with_the_limit_that_refused_it(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", channel=UNPACED)
    ann.run()
    sent, dropped = stage.decision("a"), stage.decision("b")
    assert sent is not None
    assert (sent.outcome, sent.at_us, sent.channel) == ("sent", START_US, UNPACED)
    assert dropped is not None
    assert (dropped.outcome, dropped.reason, dropped.scope, dropped.limit, dropped.fits_at_us) == (
        "dropped", Reason.LIMIT_CATEGORY, "category:errors", "1/30m", START_US + WINDOW_US,
    )  # fmt: skip
    assert stage.decision("c") is None


def test_of_several_limits_the_one_that_refused_is_on_record(redis: Database) -> None:
    stage = Stage(redis, policy_of("50/30m", "3/1m,4/30m"))
    ann = stage.worker("ann")
    for n in range(8):
        stage.send(f"e{n}", channel=UNPACED)
        ann.run()
        stage.clock.forward(10)
    found = [stage.decision(f"e{n}") for n in range(8)]
    said = [decision.limit for decision in found if decision]
    assert said == [None, None, None, "3/1m", "3/1m", "3/1m", None, "4/30m"]
    assert {decision.scope for decision in found if decision and decision.limit} == {"category:errors"}


def test_decisions_on_suppressed_events_are_kept_apart_from_all_others(stage: Stage, ann: Worker) -> None:
    limited, older_limited, others, older_others = stage.keys.decisions
    stage.send("a", "b", channel=UNPACED)
    stage.send("c", "d", category="kept")
    stage.send("e", category="rejected", channel=UNPACED)
    a, c, e = ann.go()
    ann.deliver([a, c])
    ann.answer(e, Rejected("is_archived", "archived"))
    assert (kept_under(stage, limited), kept_under(stage, others)) == ({"b", "d"}, {"a", "c", "e"})
    assert stage.redis.exists(older_limited, older_others) == 0


def test_a_decision_lives_for_seven_days(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", channel=UNPACED)
    ann.run()
    for name in (stage.keys.decisions[0], stage.keys.decisions[2], *stage.keys.decision_logs):
        assert WEEK_MS - 10_000 < stage.redis.pttl(name) <= WEEK_MS


def test_no_more_decisions_are_kept_than_may_and_the_latest_half_for_certain(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/30m"))
    stage.bounds = Bounds(decisions=8)
    ann = stage.worker("ann")
    stage.send("sent", channel=UNPACED)
    ann.run()
    for n in range(20):
        stage.send(f"e{n}", channel=UNPACED)
        ann.run()
        found = {decision.id for decision in stage.decisions.newest() if decision.outcome == "dropped"}
        assert {f"e{each}" for each in range(max(0, n - 3), n + 1)} <= found
        assert len(found) <= 8
        assert redis.hlen(stage.keys.decisions[0]) <= 4 + 1
    assert stage.decision("sent") is not None


def test_it_is_known_since_when_no_decision_is_missing(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/30m"))
    stage.bounds = Bounds(decisions=8)
    ann = stage.worker("ann")
    assert stage.decisions.kept_since_us() is None
    stage.send("sent", channel=UNPACED)
    ann.run()
    stage.clock.forward(1)
    stage.send("e0", channel=UNPACED)
    ann.run()
    assert stage.decisions.kept_since_us() == START_US
    for n in range(1, 20):
        stage.clock.forward(1)
        stage.send(f"e{n}", channel=UNPACED)
        ann.run()
    *_, oldest = stage.decisions.suppressed()
    assert stage.decisions.kept_since_us() == oldest.at_us > START_US + US


def test_a_duplicate_does_not_hide_what_became_of_the_first(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", channel=UNPACED)
    ann.run()
    for id_ in ("a", "b", "unseen"):
        stage.redis.rpush(stage.queue.lanes[1], id_)
    stage.redis.zadd(stage.keys.seen, {"unseen": START_US + REMEMBER_US})
    stage.clock.forward(1)
    assert ann.take().duplicates == ["a", "b", "unseen"]
    found = [stage.decision(id_) for id_ in ("a", "b", "unseen")]
    assert [decision.outcome for decision in found if decision] == ["sent", "dropped", "duplicate"]
    assert kept_under(stage, stage.keys.decisions[0]) == {"b", "unseen"}


# Dropped together


def test_of_many_that_are_dropped_at_once_each_has_the_reason_of_its_category(stage: Stage, ann: Worker) -> None:
    for n in range(240):
        stage.send(*(f"{name}-{n}" for name in "xyz"[: 1 + n % 3]), category="xyz"[n % 3], channel=UNPACED)
    ann.go(new=600)
    dropped = {decision.id: decision for decision in stage.decisions.newest()}
    assert len(dropped) == stage.total("dropped") == 480 - 3
    assert Counter(decision.category for decision in dropped.values()) == {"x": 79, "y": 159, "z": 239}
    assert stage.snapshot().by_category("dropped") == {"x": 79, "y": 159, "z": 239}
    assert all(decision.scope == f"category:{decision.category}" for decision in dropped.values())
    assert all("xyz"[int(id_[2:]) % 3] == decision.category for id_, decision in dropped.items())


def test_of_what_is_dropped_at_once_only_ids_that_a_producer_chose_are_remembered(stage: Stage, ann: Worker) -> None:
    stage.send_unnamed()
    unnamed = stage.send_unnamed()
    stage.send("named", channel=UNPACED)
    stage.send("other", category="deploys", channel=UNPACED)
    ann.go()
    assert {decision.id for decision in stage.decisions.newest()} == {unnamed, "named"}
    assert stage.redis.zrange(stage.keys.seen, 0, -1) == [b"named"]


def test_of_what_is_dropped_at_once_only_what_is_still_leased_ends(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", "c", channel=UNPACED)
    stage.send("x", "y", "z", category="deploys", channel=UNPACED)
    stage.send("k", "l", category="kept", channel=UNPACED)
    batch = ann.take().batch
    assert ann.keep_only(*(each.id for each in batch if each.id not in "by")) == 2
    started = ann.dispatch(batch)
    assert [each.candidate.leased.id for each in started] == ["a", "x", "k"]
    assert [each.id for each in ann.told.losses] == ["b", "y"]
    assert {decision.id for decision in stage.decisions.newest()} == {"c", "z", "l"}
    assert (stage.total("dropped"), stage.snapshot().by_category("dropped")) == (2, {"errors": 1, "deploys": 1})
    assert sorted(map(bytes.decode, stage.redis.zrange(stage.keys.seen, 0, -1))) == ["c", "l", "z"]
    assert {each.subject.id for each in ann.told.settlements} == {"c", "z", "l"}


# Told after it is durable


def test_an_outcome_that_did_not_become_durable_is_not_told(own_server: RedisServer) -> None:
    with own_server.client() as redis:
        stage = Stage(redis)
        ann = stage.worker("ann")
        stage.send("a", channel=UNPACED)
        (started,) = ann.go()
        told = Told()
        outbox = Outbox(redis, stage.keys, stage.queue, owner="ann", lease_us=LEASE_US, remember_us=REMEMBER_US)
        dispatcher = Dispatcher(
            stage.policy, ann.admission, outbox, ann.desk, told, lambda _: BACKOFF_US, GRACE_US, POST_S
        )
        settlement = after_post(started, Receipt(UNPACED, "1.1"), lambda _: BACKOFF_US, GRACE_US)
        own_server.stop()  # not killed: that can lose what the server has not written yet
        with pytest.raises(GateUnavailable):
            dispatcher.settle([settlement])
        assert told == Told()
        own_server.start()
        dispatcher.settle([settlement])
        assert told.settlements == [settlement]


def test_an_event_is_told_to_be_lost_where_another_worker_has_it(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", channel=UNPACED)
    (a, _) = ann.take().batch
    assert isinstance(a, Leased)
    ann.give_back()
    ann.dispatch([a])
    assert (ann.told.losses, ann.told.settlements) == ([a], [])


def test_a_post_is_told_to_be_lost_where_another_worker_has_its_event(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel=UNPACED)
    (started,) = ann.go()
    ann.give_back()
    assert ann.answer(started, Receipt(UNPACED, "1.1")) is False
    assert (ann.told.losses, ann.told.settlements) == ([started.candidate.leased], [])


# Text, labels and order


def test_text_and_labels_are_on_record_however_an_event_ends(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/30m"))
    ann = stage.worker("ann")
    labels = {"host": "db1"}
    for id_ in ("sent", "refused"):
        text = f'disk\nfull: "{id_}" {"x" * 100}'
        stage.intake.enqueue([(id_, Event("errors", text, id=id_, labels=labels, channel=UNPACED))])
        ann.run()
    newest = list(stage.decisions.newest())
    assert [each.id for each in newest] == ["refused", "sent"]
    for each in newest:
        assert each.text is not None
        assert (each.text[:11], len(each.text), each.labels) == ("disk full: ", 80, labels)


def test_where_no_text_is_to_be_kept_labels_are_and_no_text_is(redis: Database) -> None:
    policy = replace(policy_of("", "1/30m"), dead_letters=Bounds(text=0))
    stage = Stage(redis, policy)
    stage.bounds = policy.dead_letters
    ann = stage.worker("ann")
    for id_ in ("sent", "refused"):
        stage.intake.enqueue([(id_, Event("errors", f'",{{{id_}', id=id_, labels={"n": id_}, channel=UNPACED))])
        ann.run()
    assert [(each.id, each.text, each.labels) for each in stage.decisions.newest()] == [
        (id_, None, {"n": id_}) for id_ in ("refused", "sent")
    ]
    for id_ in ("refused", "sent"):
        told = stage.explanations.explain(id_)
        assert (told.text, told.labels) == (None, {"n": id_})


def test_since_brings_what_ended_after_an_instant_of_the_record(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", channel=UNPACED)
    ann.run()
    ends = stage.decisions.ends()
    assert stage.decisions.since(ends, wait_ms=1) == ([], ends)
    stage.send("c", channel=UNPACED)
    ann.run()
    found, after = stage.decisions.since(ends, wait_ms=1)
    assert ([each.id for each in found], after) == (["c"], stage.decisions.ends())


def test_a_record_goes_on_where_its_index_was_lost(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", channel=UNPACED)
    ann.run()
    stage.redis.delete(*stage.keys.decisions)
    stage.send("c", channel=UNPACED)
    ann.run()
    assert [each.id for each in stage.decisions.newest() if each.outcome == "dropped"] == ["c", "b"]
    assert stage.decision("c") is not None
    newest, _ = stage.redis.xrevrange(stage.keys.decision_logs[0], count=1)[0]
    stage.redis.xdel(stage.keys.decision_logs[0], newest)
    stage.redis.delete(*stage.keys.decisions)
    stage.send("d", channel=UNPACED)
    ann.run()
    assert [each.id for each in stage.decisions.newest() if each.outcome == "dropped"] == ["d", "b"]


@pytest.mark.parametrize("number", ["", "x", "-1", "0", "1.5", "9" * 30])
def test_a_number_of_the_index_that_somebody_else_has_written_stops_no_worker(
    stage: Stage, ann: Worker, number: str
) -> None:
    stage.send("a", "b", channel=UNPACED)
    ann.run()
    stage.redis.hset(stage.keys.decisions[0], "", number)
    stage.send("c", channel=UNPACED)
    ann.run()
    assert stage.decision("c") is not None
    stage.check()


@pytest.mark.parametrize("value", ["null", "5", "true", '"x"', "[1]", '{"a":1}'])
def test_what_a_decision_says_in_another_form_or_of_another_version_is_left_out(
    stage: Stage, ann: Worker, value: str
) -> None:
    stage.send("a", "b", channel=UNPACED)
    ann.run()
    log = stage.keys.decision_logs[0]
    ((entry, pairs),) = stage.redis.xrange(log)
    ((why, ids),) = pairs.items()
    named = ("code", "detail", "channel", "ts", "instead_of", "refused_by", "copies", "repeats", "since_us", "shadow")
    plain = stage.decision("b")
    assert plain is not None
    for name in (*named, "of_another_version"):
        stage.redis.delete(log)
        stage.redis.xadd(log, {why.replace(b"{}]", f'{{"{name}":{value}}}]'.encode()): ids}, id=entry)
        (found,) = [each for each in stage.decisions.newest() if each.id == "b"]
        assert found == stage.decision("b")
        assert (found.scope, found.limit, found.fits_at_us) == (plain.scope, plain.limit, plain.fits_at_us)
        assert ended(found, str).startswith("Dropped at ")


def test_later_decisions_do_not_change_what_follows_a_place(stage: Stage) -> None:
    ann = stage.worker()
    for n in range(4):
        stage.send(f"sent-{n}", category="others")
        stage.send(f"first-{n}", f"second-{n}", f"third-{n}")
        ann.run()
        stage.clock.forward(1)
    kept = [each.id for each in stage.decisions.newest()]
    assert len(kept) == 16
    found, place = list[str](), Position()
    for _ in kept:
        decision, place = next(stage.decisions.behind(place))
        found.append(decision.id)
        stage.send(f"after-{decision.id}")
        ann.run()
    assert found == kept
    assert list(stage.decisions.behind(place)) == []


def test_who_looks_for_the_newest_decision_reads_few_of_very_many(stage: Stage) -> None:
    pairs = {f'{START_US} ["dropped","errors","limit:category",null,{{}}]': " ".join(f"e{n}" for n in range(1_000))}
    for n in range(1, 31):
        stage.redis.xadd(stage.keys.decision_logs[0], pairs, id=f"{1_000 * n}-0")
    decisions = Decisions(stage.redis, stage.keys)
    before = stage.redis.info("stats")["total_net_output_bytes"]
    assert next(decisions.suppressed()).id == "e999"
    read = stage.redis.info("stats")["total_net_output_bytes"] - before
    assert 4_000 < read < 40_000, "one entry has 4,890 bytes"
    assert sum(1 for _ in decisions.suppressed()) == 30_000
