"""Mistakes against a rule of the protocol, in words: those that no operator makes, such as another order of two steps.

Each quotes its file, so there are few. Where a quote no longer stands in its file, say the rule in its new words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.mutants.change import Mutant


@dataclass(frozen=True, slots=True)
class Rule:
    """``old``, which stands in ``file`` once, becomes ``new``, and the test has to fail."""

    name: str
    file: str
    old: str
    new: str
    test: str

    def mutant(self, text: str) -> Mutant:
        """The mutant of the file's text; ``ValueError`` unless ``old`` stands in it once."""
        if text.count(self.old) != 1:
            raise ValueError(f"rule {self.name!r}: {self.old!r} stands {text.count(self.old)} times in {self.file}")
        return Mutant(self.name, self.file, text.index(self.old), self.old, self.new, (self.test,))


RULES: Final = (
    Rule(
        "fallback: nobody knows that it stands in for another channel",
        "lua/settle.lua",
        "  header.gone = { channel.name, event.said.code }\n",
        "",
        "tests/integration/store/test_fallback.py",
    ),
    Rule(
        "fallback: nobody is told that the line of the fallback moves",
        "lua/settle.lua",
        "  if onto then\n    set_line(onto)\n  end\n",
        "",
        "tests/integration/store/test_fallback.py",
    ),
    Rule(
        "quiet hours: the pre-check goes on when they begin",
        "dispatcher/store/admission.py",
        "min(denied.retry_after_us / US, loud_s)",
        "denied.retry_after_us / US",
        "tests/integration/test_quiet_hours.py",
    ),
    # dispatcher/core/transitions.py
    Rule(
        "quiet hours: what they held follows on_limit afterwards",
        "dispatcher/core/transitions.py",
        "    if leased.line is not None and is_quiet_line(leased.line):\n",
        "    if False:\n",
        "tests/integration/test_quiet_hours.py",
    ),
    Rule(
        "quiet hours: what they held may end in a digest",
        "dispatcher/core/transitions.py",
        "    if leased.replays or is_quiet_line(leased.line):\n",
        "    if leased.replays:\n",
        "tests/integration/test_quiet_hours.py",
    ),
    Rule(
        "quiet hours: what was admitted is held",
        "dispatcher/core/transitions.py",
        "None if leased.was_admitted else policy.hours.hush(event",
        "policy.hours.hush(event",
        "tests/integration/test_quiet_hours.py",
    ),
    Rule(
        "quiet hours: a replayed event is dropped",
        "dispatcher/core/transitions.py",
        "    if leased.replays:\n        letter = DeadLettered(Reason.QUIET",
        "    if False:\n        letter = DeadLettered(Reason.QUIET",
        "tests/integration/test_quiet_hours.py",
    ),
    Rule(
        "fallback: a gone fallback is tried again",
        "dispatcher/core/policy.py",
        "        if name is None or name == channel or leased.gone is not None:\n",
        "        if name is None or name == channel:\n",
        "tests/integration/store/test_fallback.py",
    ),
    Rule(
        "core: nobody stands behind others",
        "dispatcher/core/transitions.py",
        "    return Deferral(candidate, policy.line(leased.event), rule.max_parked, counting=counting)\n",
        "    return None\n",
        "tests/integration/store/test_deferred.py",
    ),
    Rule(
        "core: an admitted event stands in line again",
        "dispatcher/core/transitions.py",
        "or stands or leased.was_admitted:",
        "or stands:",
        "tests/integration/store/test_order.py",
    ),
    Rule(
        "core: an event ends with a slot that nothing was posted on",
        "dispatcher/core/transitions.py",
        "not leased.held and (leased.unknown or leased.attempt)",
        "leased.unknown or (leased.attempt and not leased.held)",
        "tests/unit/core/test_policy.py",
    ),
    Rule(
        "core: other limits drop what was admitted",
        "dispatcher/core/transitions.py",
        "    return leased._replace(held=True) if has_slots else leased\n",
        "    return leased\n",
        "tests/integration/test_limits_change.py",
    ),
    Rule(
        "core: a slot for what an event is about counts as one of a limit",
        "dispatcher/core/transitions.py",
        "    has_slots = any(not is_once(scope) for scope in all_scopes(candidate.terms.scopes))\n",
        "    has_slots = bool(candidate.terms.scopes)\n",
        "tests/integration/test_limits_change.py",
    ),
    Rule(
        "core: an event that asked for no slot counts as admitted",
        "dispatcher/core/transitions.py",
        "    return leased._replace(held=True) if has_slots else leased\n",
        "    return leased._replace(held=True)\n",
        "tests/integration/test_limits_change.py",
    ),
    Rule(
        "core: an admitted event waits as long as a held slot may",
        "dispatcher/core/transitions.py",
        "min(verdict.retry_after_us, verdict.limit.window_us)",
        "verdict.retry_after_us",
        "tests/integration/store/test_endurance.py",
    ),
    Rule(
        "store: who came back is dropped without a look at its slots",
        "dispatcher/store/admission.py",
        '            facts["release"] = owning',
        "            pass",
        "tests/integration/store/test_take.py",
    ),
    Rule(
        "core: a replayed event is dropped",
        "dispatcher/core/transitions.py",
        "    if leased.replays or is_quiet_line(leased.line):\n        return False, None",
        "    if is_quiet_line(leased.line):\n        return False, None",
        "tests/integration/store/test_dead_letters.py",
    ),
    Rule(
        "delivery: an event with unknown delivery is not reconciled",
        "dispatcher/core/transitions.py",
        "failed_scans=0, arrived=True, reached=False",
        "arrived=True, reached=False",
        "tests/integration/store/test_reconcile.py",
    ),
    Rule(
        "delivery: an event with unknown delivery gives its slot back",
        "dispatcher/core/transitions.py",
        "return settlement(waits, Slots.KEEP, failed_scans=0",
        "return settlement(waits, Slots.RELEASE, failed_scans=0",
        "tests/integration/store/test_reconcile.py",
    ),
    Rule(
        "delivery: the first history scan is timed from the answer",
        "dispatcher/core/transitions.py",
        "Parked(Place.SCAN, Reason.RECONCILE, grace_us, code",
        "Parked(Place.TIMER, Reason.RECONCILE, grace_us, code",
        "tests/integration/store/test_reconcile.py",
    ),
    Rule(
        "delivery: a refusal forgets what was posted again",
        "dispatcher/core/transitions.py",
        "            resent=leased.resent,\n",
        "",
        "tests/integration/store/test_reconcile.py",
    ),
    Rule(
        "delivery: a 429 uses an attempt",
        "dispatcher/core/transitions.py",
        "Slots.HOLD, attempt=spared, cooldown_us",
        "Slots.HOLD, cooldown_us",
        "tests/integration/test_delivery_table.py",
    ),
    Rule(
        "delivery: who was paused gives its slot back",
        "dispatcher/core/transitions.py",
        "Slots.HOLD, pause=result",
        "Slots.RELEASE, pause=result",
        "tests/integration/store/test_waiting.py",
    ),
    Rule(
        "delivery: a failure below Slack is an answer",
        "dispatcher/core/transitions.py",
        "attempt=tried if uses_attempt else spared, reached=reached",
        "attempt=tried if uses_attempt else spared, reached=True",
        "tests/integration/store/test_pause.py",
    ),
    Rule(
        "delivery: what is rejected keeps its slot",
        "dispatcher/core/transitions.py",
        "return settlement(letter, Slots.RELEASE, replied=True",
        "return settlement(letter, Slots.KEEP, replied=True",
        "tests/integration/test_delivery_table.py",
    ),
    Rule(
        "silence: what was admitted is suppressed",
        "dispatcher/core/transitions.py",
        "    if leased.was_admitted:\n        return None\n    slots",
        "    slots",
        "tests/integration/test_silences.py",
    ),
    Rule(
        "versions: what was admitted counts as new",
        "dispatcher/core/transitions.py",
        "leased._replace(takes=leased.takes + 1)",
        "leased",
        "tests/integration/test_limits_change.py",
    ),
    # dispatcher/core/reconciliation.py
    Rule(
        "delivery: what is absent gives no slot to its next post",
        "dispatcher/core/reconciliation.py",
        "Slots.HOLD, resent=",
        "Slots.KEEP, resent=",
        "tests/integration/store/test_reconcile.py",
    ),
    Rule(
        "delivery: on_ambiguous is not asked",
        "dispatcher/core/reconciliation.py",
        "if rule is OnAmbiguous.DEAD_LETTER or",
        "if",
        "tests/integration/store/test_reconcile.py",
    ),
    Rule(
        "delivery: what cannot be read has no end",
        "dispatcher/core/reconciliation.py",
        "or max(unknown, leased.attempt) >= MAX_ATTEMPTS:",
        ":",
        "tests/integration/store/test_reconcile.py",
    ),
    Rule(
        "delivery: a history scan's 429 is kept to itself",
        "dispatcher/core/reconciliation.py",
        '"scan_wait_us": later.retry_after_us',
        '"scan_wait_us": None',
        "tests/integration/store/test_reconcile.py",
    ),
    Rule(
        "delivery: a history scan begins at the last post",
        "dispatcher/core/reconciliation.py",
        "_unconfirmed(each).first_us",
        "_unconfirmed(each).sent_us",
        "tests/integration/store/test_reconcile.py",
    ),
    Rule(
        "delivery: a thread is looked for in the channel",
        "dispatcher/core/reconciliation.py",
        "leased.thread_ts or post.root)",
        "None)",
        "tests/integration/store/test_reconcile.py",
    ),
    Rule(
        "delivery: copies are forgotten by what is found",
        "dispatcher/core/states.py",
        "                return leased.unknown\n",
        "                return 0\n",
        "tests/integration/store/test_reconcile.py",
    ),
    Rule(
        "delivery: the channel's id is not used",
        "dispatcher/core/reconciliation.py",
        "(post.channel or leased.channel or candidate.terms.channel,",
        "(candidate.terms.channel,",
        "tests/integration/store/test_reconcile.py",
    ),
    # dispatcher/slack/history.py
    Rule(
        "delivery: the first page is all",
        "dispatcher/slack/history.py",
        'elif not cursor and not data.get("has_more"):',
        "elif True:",
        "tests/integration/slack/test_history.py",
    ),
    Rule(
        "delivery: fifteen messages are the whole history",
        "dispatcher/slack/history.py",
        "elif not cursor or cursor in cursors or (self._is_cut_short and page == SHORT_PAGE):",
        "elif not cursor or cursor in cursors:",
        "tests/integration/slack/test_history.py",
    ),
    Rule(
        "delivery: anybody's metadata is a mark",
        "dispatcher/slack/history.py",
        "is not None and mark in wanted",
        "is not None",
        "tests/integration/slack/test_history.py",
    ),
    Rule(
        "delivery: a private channel that may not be listed is absent",
        "dispatcher/slack/history.py",
        'if isinstance(answer, Absent) and "private" in types:',
        "if isinstance(answer, Absent):",
        "tests/integration/slack/test_history.py",
    ),
    Rule(
        "delivery: a 429 on history scans has no time",
        "dispatcher/slack/history.py",
        'f"Slack limits {method}", retry_after_us, reached=True',
        'f"Slack limits {method}", None, reached=True',
        "tests/integration/slack/test_history.py",
    ),
    Rule(
        "delivery: a failure is an answer",
        "dispatcher/slack/history.py",
        "return ScanLater(code, detail)\n",
        "return ScanLater(code, detail, reached=True)\n",
        "tests/integration/slack/test_history.py",
    ),
    Rule(
        "delivery: a person is a channel",
        "dispatcher/slack/history.py",
        "_PERSON.fullmatch(channel)",
        "False",
        "tests/integration/slack/test_history.py",
    ),
    # dispatcher/core/digests.py
    Rule(
        "digest: an edit asks for slots",
        "dispatcher/core/digests.py",
        "    if plan.act is Act.EDIT:\n        return ()\n",
        "",
        "tests/integration/store/test_digest.py",
    ),
    Rule(
        "digest: the end takes the slot that is kept",
        "dispatcher/core/digests.py",
        "tells=tally.shown is None and tally.telling is not Telling.QUIET)",
        "tells=True)",
        "tests/integration/store/test_notice.py",
    ),
    Rule(
        "digest: what cannot be edited is posted at once",
        "dispatcher/core/digests.py",
        "if calm_us > 0 else",
        "if False else",
        "tests/integration/store/test_digest.py",
    ),
    Rule(
        "digest: nothing is closed",
        "dispatcher/core/digests.py",
        "or left_us <= 0:\n        return Plan(Act.EDIT, ends=left_us <= 0)",
        "or left_us <= 0:\n        return Plan(Act.EDIT, ends=False)",
        "tests/integration/store/test_digest.py",
    ),
    Rule(
        "digest: a refused edit is tried again",
        "dispatcher/core/digests.py",
        "counting.window_us, shown, ends=is_edit,",
        "counting.window_us, shown,",
        "tests/integration/store/test_digest.py",
    ),
    Rule(
        "digest: whatever cannot be edited pauses",
        "dispatcher/core/digests.py",
        'case Paused("unknown_method" as code, detail) if is_edit:',
        "case 0:",
        "tests/integration/store/test_digest.py",
    ),
    Rule(
        "digest: what is held for nothing stays held",
        "dispatcher/core/digests.py",
        "if leased.held else Slots.KEEP",
        "if False else Slots.KEEP",
        "tests/integration/store/test_notice.py",
    ),
    # dispatcher/core/policy.py
    Rule(
        "telling: a digest has no window of its own",
        "dispatcher/core/policy.py",
        'yield Scope(f"digest:{category}"',
        'if False: yield Scope(""',
        "tests/integration/store/test_digest.py",
    ),
    Rule(
        "telling: the share keeps no slot",
        "dispatcher/core/policy.py",
        "kept = self.kept(category) if tells else None",
        "kept = None",
        "tests/integration/store/test_digest.py",
    ),
    Rule(
        "shadow limits: it is a part of the scope that is enforced",
        "dispatcher/core/policy.py",
        "Scope(SHADOW_PREFIX + scope.name, scope.limits)",
        "scope",
        "tests/integration/test_shadow_limits.py",
    ),
    # dispatcher/core/pipeline.py
    Rule(
        "core: an outcome is told before it is durable",
        "dispatcher/core/pipeline.py",
        "        done = self.outbox.settle(",
        "        self.observer.settled(settlements)\n        done = self.outbox.settle(",
        "tests/integration/store/test_decisions.py",
    ),
    Rule(
        "core: what was lost is told as settled",
        "dispatcher/core/pipeline.py",
        "in pairs if is_applied])\n        self.observer.lost(",
        "in pairs])\n        self.observer.lost(",
        "tests/integration/store/test_decisions.py",
    ),
    Rule(
        "core: what was lost is told as dropped",
        "dispatcher/core/pipeline.py",
        "for place in sorted(answer.lost)])",
        "for place in ()])",
        "tests/integration/store/test_decisions.py",
    ),
    Rule(
        "core: those who may go are dropped on the way",
        "dispatcher/core/pipeline.py",
        "not in newcomers or each.leased.id in may_go]",
        "not in newcomers]",
        "tests/integration/store/test_deferred.py",
    ),
    Rule(
        "versions: what was refused is forgotten",
        "dispatcher/core/pipeline.py",
        "[*self.candidates, *self.admitted, *(each.candidate for each in self.refused)]",
        "[*self.candidates, *self.admitted]",
        "tests/integration/test_limits_change.py",
    ),
    Rule(
        "versions: what was admitted is forgotten",
        "dispatcher/core/pipeline.py",
        "[*self.candidates, *self.admitted, *(each.candidate for each in self.refused)]",
        "[*self.candidates, *(each.candidate for each in self.refused)]",
        "tests/integration/test_limits_change.py",
    ),
    Rule(
        "versions: a post is settled by the pace by which it was started",
        "dispatcher/core/pipeline.py",
        "transitions.at_pace(each, self.policy) for each in settlements",
        "*settlements",
        "tests/integration/test_limits_change.py",
    ),
    Rule(
        "silence: of what has waited for its end one goes at a time",
        "dispatcher/core/pipeline.py",
        "Opening(SILENCE_PREFIX + silence_id, now_us, ROOM)",
        "Opening(SILENCE_PREFIX + silence_id, now_us, 1)",
        "tests/integration/test_silences.py",
    ),
    # dispatcher/store/script_rows.py
    Rule(
        "rows: what a dead worker was admitted with may be dropped",
        "dispatcher/store/script_rows.py",
        'header.get("held", False) or _was_admitted(header)',
        'header.get("held", False)',
        "tests/integration/test_limits_change.py",
    ),
    Rule(
        "silence: what fires is not known",
        "dispatcher/store/script_rows.py",
        '({"fires": True} if fires else {})',
        "{}",
        "tests/integration/test_silences.py",
    ),
    Rule(
        "shadow limits: it stays charged",
        "dispatcher/store/script_rows.py",
        "(*all_scopes(terms.scopes), *terms.shadows)",
        "all_scopes(terms.scopes)",
        "tests/integration/test_shadow_limits.py",
    ),
    # dispatcher/store/leases.py
    Rule(
        "core: what overtook comes first",
        "dispatcher/store/leases.py",
        "return self._arrived().and_then(taken)",
        "return taken.and_then(self._arrived())",
        "tests/integration/store/test_ahead.py",
    ),
    Rule(
        "core: a worker comes back under its old name",
        "dispatcher/store/leases.py",
        'self.owner = f"{self._name}/{self._owners}"',
        "self.owner = self._name",
        "tests/integration/store/test_deferred.py",
    ),
    Rule(
        "core: a prefetch overtakes old events",
        "dispatcher/store/leases.py",
        "not taken.suspended and taken.undecided is not None",
        "not taken.suspended",
        "tests/integration/store/test_order.py",
    ),
    Rule(
        "versions: openings of older limits are told",
        "dispatcher/store/leases.py",
        '        self._version, self._bounds = {"version": version}, bounds\n        self._opened = {}\n',
        '        self._version, self._bounds = {"version": version}, bounds\n',
        "tests/integration/test_limits_change.py",
    ),
    # dispatcher/store/intake.py
    Rule(
        "pre-check: a job called otherwise bears it",
        "dispatcher/store/intake.py",
        "(event.id is not None and event.id != job_id)",
        "False",
        "tests/integration/store/test_intake.py",
    ),
    Rule(
        "stock jobs: the mark of a job is used for the one that took its place",
        "lua/include/intake.lua",
        "given.enqueued[place] == instants[n]",
        "true",
        "tests/integration/store/test_stock_jobs.py",
    ),
    Rule(
        "stock jobs: a dead letter that is replayed is marked",
        "lua/peek.lua",
        "rows[n + 1] or rows[n + 2] or rows[n + 3]",
        "rows[n + 1] or rows[n + 3]",
        "tests/integration/store/test_stock_jobs.py",
    ),
    Rule(
        "stock jobs: a job that a stock worker has run is marked",
        "lua/peek.lua",
        "rows[n + 1] or rows[n + 2] or rows[n + 3]",
        "rows[n + 1] or rows[n + 2]",
        "tests/integration/store/test_stock_jobs.py",
    ),
    # dispatcher/store/admission.py
    Rule(
        "shadow limits: a retry counts again",
        "dispatcher/store/admission.py",
        "() if leased.was_admitted else",
        "",
        "tests/integration/test_shadow_limits.py",
    ),
    Rule(
        "pre-check: categories that tell are named",
        "dispatcher/store/admission.py",
        " and each.counting is None:",
        ":",
        "tests/integration/store/test_prefilter.py",
    ),
    Rule(
        "pre-check: what older limits refused stays named",
        "dispatcher/store/admission.py",
        "            self._prefilter.follow(policy.hours)\n",
        "            pass\n",
        "tests/integration/store/test_prefilter.py",
    ),
    # dispatcher/worker/worker.py
    Rule(
        "pre-check: it sleeps while a batch is on its way",
        "dispatcher/worker/worker.py",
        "if taken.prefiltered or self._outbox.ahead or",
        "if taken.prefiltered or",
        "tests/integration/worker/test_ahead.py",
    ),
    Rule(
        "pre-check: at its end it tells of nothing",
        "dispatcher/worker/worker.py",
        "        for taken in self._outbox.arrivals():\n            self._tell_ended(taken)",
        "        for taken in self._outbox.arrivals():\n            del taken",
        "tests/integration/worker/test_ahead.py",
    ),
    Rule(
        "versions: an idle worker does not look",
        "dispatcher/worker/worker.py",
        "        if taken.version != self._limits.version:\n",
        "        if False:\n",
        "tests/faults/test_reload.py",
    ),
    # dispatcher/app/active_limits.py
    Rule(
        "versions: a file with faults ends the worker",
        "dispatcher/app/active_limits.py",
        "self._versions.note_refused()\n            return\n",
        "self._versions.note_refused()\n            raise\n",
        "tests/faults/test_reload.py",
    ),
)
