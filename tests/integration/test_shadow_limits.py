"""Shadow limits: counted as if they were enforced, and refusing nothing. In made-up time."""

from __future__ import annotations

import pytest

from dispatcher.core.explain import Decision, ended
from dispatcher.core.ports import Overtaken
from dispatcher.core.posts import Receipt, Rejected, Retryable
from dispatcher.core.units import US
from dispatcher.store.versions import Version
from tests.support.deferral import category_line, posted, send
from tests.support.stage import UNPACED, Stage, Worker

HEAD = f'channels: {{"{UNPACED}": {{pace: none}}}}\n'
HALF_HOUR_S = 1_800


def shadow(limit: str) -> str:
    most, _, window = limit.partition("/")
    return f"{{max: {most}, window: {window}, shadow: true}}"


def limits(each: str, together: str = "", more: str = "") -> str:
    return f"{HEAD}global: {{limits: [{together}]}}\ndefaults: {{limits: [{each}]{more}}}\n"


def worker(stage: Stage, text: str) -> Worker:
    """A worker that decides by these limits."""
    one = stage.worker("ann")
    one.follow(stage.put_in_force(text))
    return one


def refused(stage: Stage) -> dict[str, int]:
    return stage.books.shadowed()


def decision(stage: Stage, id_: str) -> Decision:
    found = stage.decision(id_)
    assert found is not None
    return found


def test_an_event_over_a_shadow_limit_is_posted_counted_and_on_record(stage: Stage) -> None:
    ann = worker(stage, limits(shadow("2/30m")))
    send(stage, *"abcde")
    ann.run()
    assert (posted(stage), stage.total("dropped")) == (list("abcde"), 0)
    assert refused(stage) == {"category:errors 2/30m": 3}
    assert stage.slots("shadow:category:errors").keys() == {"a", "b"}
    assert [list(decision(stage, id_).shadow) for id_ in "abc"] == [[], [], ["category:errors 2/30m"]]


def test_a_shadow_limit_lets_in_the_events_that_a_real_limit_would(stage: Stage) -> None:
    ann = worker(stage, limits(shadow("2/30m")))
    for id_ in "abcdefg":
        send(stage, id_)
        ann.run()
        stage.clock.forward(HALF_HOUR_S / 3)
    assert [id_ for id_ in "abcdefg" if not decision(stage, id_).shadow] == ["a", "b", "d", "e", "g"]


def test_a_shadow_limit_has_room_again_to_the_microsecond(stage: Stage) -> None:
    ann = worker(stage, limits(shadow("1/30m")))
    send(stage, "a")
    ann.run()
    stage.clock.now_us += HALF_HOUR_S * US - 1
    send(stage, "b")
    ann.run()
    stage.clock.now_us += 1
    send(stage, "c")
    ann.run()
    assert [id_ for id_ in "abc" if decision(stage, id_).shadow] == ["b"]


def test_an_event_that_other_limits_refuse_is_not_counted(stage: Stage) -> None:
    ann = worker(stage, limits(f"{shadow('2/30m')}, 3/1h"))
    send(stage, *"abcde")
    ann.run()
    assert (posted(stage), stage.total("dropped")) == (["a", "b", "c"], 2)
    assert refused(stage) == {"category:errors 2/30m": 1}


def test_each_scope_counts_by_itself(stage: Stage) -> None:
    per_label = f", per_label: {{host: [{shadow('1/1h')}]}}"
    ann = worker(stage, limits(shadow("3/30m"), together=shadow("2/30m"), more=per_label))
    send(stage, "a", "b", labels={"host": "db1"})
    send(stage, "c", labels={"host": "db2"})
    send(stage, "d", category="news")
    ann.run()
    assert refused(stage) == {"global 2/30m": 2, "label:errors:host 1/1h": 1}
    assert list(decision(stage, "b").shadow) == ["label:errors:host=db1 1/1h"]
    assert stage.slots("shadow:category:errors").keys() == {"a", "b", "c"}
    assert stage.slots("shadow:label:errors:host=db2").keys() == {"c"}


def test_of_several_windows_the_one_that_frees_up_last_is_named(stage: Stage) -> None:
    ann = worker(stage, limits(f"{shadow('2/1m')}, {shadow('3/1h')}"))
    for id_ in "abcde":
        send(stage, id_)
    ann.run()
    assert refused(stage) == {"category:errors 2/1m": 3}
    stage.clock.forward(60)
    send(stage, "f", "g")
    ann.run()
    assert refused(stage) == {"category:errors 2/1m": 3, "category:errors 3/1h": 1}


def test_a_batch_mixes_categories_with_and_without(stage: Stage) -> None:
    ann = worker(stage, limits("") + f"categories: {{errors: {{limits: [{shadow('1/1h')}]}}}}\n")
    send(stage, "n1", category="news")
    send(stage, "e1", "e2")
    send(stage, "n2", category="news")
    ann.run()
    assert posted(stage) == ["n1", "e1", "e2", "n2"]
    assert refused(stage) == {"category:errors 1/1h": 1}
    assert list(decision(stage, "e2").shadow) == ["category:errors 1/1h"]


def test_a_retry_is_not_counted_again_and_keeps_its_note(stage: Stage) -> None:
    ann = worker(stage, limits(shadow("1/30m")))
    send(stage, "a", "b")
    first, second = ann.go()
    for started in (first, second):
        ann.answer(started, Retryable("connection_refused", ""))
    stage.clock.forward(5)
    for started in ann.go():
        ann.answer(started, Receipt(UNPACED, "1.0"))
    assert refused(stage) == {"category:errors 1/30m": 1}
    assert [list(decision(stage, id_).shadow) for id_ in "ab"] == [[], ["category:errors 1/30m"]]


def test_an_event_that_waits_for_its_channel_keeps_its_shadow_refusal(stage: Stage) -> None:
    ann = worker(stage, limits(shadow("1/30m")))
    stage.send("a", "b", channel="#paced")
    (started,) = ann.go()
    ann.answer(started, Receipt("#paced", "1.0"))
    stage.clock.forward(1)
    (started,) = stage_worker(stage, "bob").go()
    stage_worker(stage, "bob").answer(started, Receipt("#paced", "1.0"))
    assert list(decision(stage, "b").shadow) == ["category:errors 1/30m"]


def stage_worker(stage: Stage, owner: str) -> Worker:
    """Another worker that follows what is in force."""
    one = stage.worker(owner)
    version = stage.versions.in_force()
    assert version is not None
    one.follow(version)
    return one


def test_an_event_that_ends_unposted_frees_its_shadow_slot(stage: Stage) -> None:
    ann = worker(stage, limits(shadow("1/30m")))
    send(stage, "a")
    (started,) = ann.go()
    ann.answer(started, Rejected("channel_not_found", ""))
    assert stage.slots("shadow:category:errors") == {}


def test_a_deferred_event_is_counted_when_it_is_admitted(stage: Stage) -> None:
    ann = worker(stage, limits(f"1/30m, {shadow('1/1h')}", more=", on_limit: defer"))
    send(stage, "a", "b")
    ann.run()
    assert (category_line(stage), refused(stage)) == (["b"], {})
    stage.clock.forward(HALF_HOUR_S)
    ann.run()
    assert (posted(stage), refused(stage)) == (["a", "b"], {"category:errors 1/1h": 1})


def test_an_event_that_is_decided_again_by_new_limits_counts_once(stage: Stage) -> None:
    ann = worker(stage, limits(shadow("1/30m"), together="9/1h"))
    send(stage, "a")
    batch = ann.take().batch
    version = stage.put_in_force(limits(shadow("1/30m"), together="8/1h"))
    with pytest.raises(Overtaken) as caught:
        ann.dispatch(batch)
    ann.follow(version)
    ann.deliver(ann.dispatch(caught.value.undecided))
    assert refused(stage) == {}
    assert stage.slots("shadow:category:errors").keys() == {"a"}


def test_an_event_that_was_admitted_and_is_decided_again_is_not_counted_again(stage: Stage) -> None:
    ann = worker(stage, limits(shadow("1/30m"), together="9/1h"))
    send(stage, "a", "b")
    published: list[Version] = []
    newer = limits(shadow("1/30m"), together="8/1h")
    stage.once_after_admit(lambda: published.append(stage.put_in_force(newer)))
    with pytest.raises(Overtaken) as caught:
        ann.dispatch(ann.take().batch)
    ann.follow(published[0])
    ann.deliver(ann.dispatch(caught.value.undecided))
    assert (posted(stage), refused(stage)) == (["a", "b"], {"category:errors 1/30m": 1})


def test_shadow_limits_are_no_part_of_guarantees(stage: Stage) -> None:
    text = f"{HEAD}global: {{limits: [3/30m, {shadow('1/1h')}]}}\ndefaults: {{limits: []}}\n"
    ann = worker(stage, f"{text}categories: {{errors: {{guarantee: 2}}}}\n")
    send(stage, "n1", "n2", category="news")
    send(stage, "e1", "e2")
    ann.run()
    assert posted(stage) == ["n1", "e1", "e2"]
    assert refused(stage) == {"global 1/1h": 2}


def test_the_sentence_of_an_event_names_the_shadow_limit_that_it_exceeded(stage: Stage) -> None:
    ann = worker(stage, limits(shadow("1/30m")))
    send(stage, "a", "b")
    ann.run()
    sentence = ended(decision(stage, "b"), lambda _: "noon")
    assert sentence == f"Sent to {UNPACED} at noon; not enforced, category:errors 1/30m would have refused it."
    assert ended(decision(stage, "a"), lambda _: "noon") == f"Sent to {UNPACED} at noon."
