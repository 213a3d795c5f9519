"""Every Redis key of a namespace: one attribute each, with its type and lifetime.

All of them share the hash tag ``{NAMESPACE}``, so one script may touch any of them, on Cluster too. RQ's own keys
(the intake, ``dispatcher.store.rq_keys``) carry no hash tag.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

LAYOUT_VERSION: Final = "6"
"""Another one where workers of the version before could not go on beside those of this one.

A further field of a header needs none: a version that does not know it keeps it.
"""


@dataclass(frozen=True)
class Keys:
    """The keys of one namespace.

    *Permanent* ones stay for as long as the namespace is used; *empty* ones are gone when their last member is.
    """

    namespace: str

    def __post_init__(self) -> None:
        name = self.namespace
        if not isinstance(name, str) or not name or set(name) & set("{}") or any(map(str.isspace, name)):
            raise ValueError(f"namespace {self.namespace!r}, expected a name without braces or white space")

    def _key(self, name: str) -> str:
        return f"{{{self.namespace}}}:{name}"

    @cached_property
    def layout(self) -> str:
        """STRING, version of this layout; permanent."""
        return self._key("layout")

    @cached_property
    def totals(self) -> str:
        """HASH, the books: ``sent``, ``sent errors``, ``dropped errors limit:global`` ...; permanent."""
        return self._key("totals")

    @cached_property
    def metrics(self) -> str:
        """HASH, what is counted beside the books (lua/include/accounting.lua); permanent."""
        return self._key("metrics")

    @cached_property
    def minute_prefix(self) -> str:
        """What the keys of ``minute`` begin with."""
        return self._key("minute:")

    def minute(self, number: int) -> str:
        """HASH, what the books counted in one minute since 1970 (lua/include/accounting.lua); lives for two days."""
        return f"{self.minute_prefix}{number}"

    @cached_property
    def names(self) -> str:
        """ZSET, up to 1,000 category names counted that no limits file knows -> place by first sight; permanent."""
        return self._key("names")

    @cached_property
    def seq(self) -> str:
        """STRING, counter of first sights; permanent."""
        return self._key("seq")

    @cached_property
    def events(self) -> str:
        """HASH, id -> record, from an event's first sight until it is settled; empty."""
        return self._key("events")

    @cached_property
    def leases(self) -> str:
        """ZSET, owner -> end of its lease (us); empty."""
        return self._key("leases")

    @cached_property
    def leased_prefix(self) -> str:
        """What the keys of ``leased`` begin with."""
        return self._key("leased:")

    def leased(self, owner: str) -> str:
        """SET, ids that one worker holds; empty."""
        return self.leased_prefix + owner

    @cached_property
    def requeued(self) -> str:
        """ZSET, id -> seq, events that their worker gave back or left, next to be taken; empty."""
        return self._key("requeued")

    @cached_property
    def parked(self) -> str:
        """ZSET, id -> deadline (us), everything that waits; empty."""
        return self._key("parked")

    @cached_property
    def lines(self) -> str:
        """ZSET, when (us) the next may pass; empty.

        ``channel:#ops``, ``paused:errors`` and ``scope:global`` -> instant.
        """
        return self._key("lines")

    @cached_property
    def line_prefix(self) -> str:
        """What the keys of ``line`` begin with."""
        return self._key("line:")

    def line(self, name: str) -> str:
        """ZSET, who waits in one line, in order; empty.

        ``channel:#ops``: id -> class and seq.
        ``paused:errors``: id -> class and seq.
        ``category:errors`` or ``label:deploys:host=db1``: id -> priority and seq.
        ``silence:3:errors`` or ``quiet:category:errors``: id -> priority and seq.
        """
        return self.line_prefix + name

    @cached_property
    def waits_prefix(self) -> str:
        """What the keys of ``waits`` begin with."""
        return self._key("waits:")

    def waits(self, scope: str) -> str:
        """ZSET, lines of categories that wait for one scope -> rank of their heads; empty."""
        return self.waits_prefix + scope

    @cached_property
    def awaited(self) -> str:
        """HASH, line of a category -> the scope it waits for; empty."""
        return self._key("awaited")

    @cached_property
    def deferred(self) -> str:
        """HASH, category -> how many of its events wait for room in a limit; empty."""
        return self._key("deferred")

    @cached_property
    def deciding(self) -> str:
        """HASH, owner -> what it took and has not decided; empty."""
        return self._key("deciding")

    @cached_property
    def freed(self) -> str:
        """HASH, scope -> number of the last slot that became free of it; lives while somebody is deciding."""
        return self._key("freed")

    @cached_property
    def timers(self) -> str:
        """ZSET, id -> its instant (us); empty."""
        return self._key("timers")

    @cached_property
    def scheduled(self) -> str:
        """ZSET, id -> the instant (us) from which on the event may ask for room; empty."""
        return self._key("scheduled")

    @cached_property
    def posting(self) -> str:
        """HASH, channel -> id whose post is in flight or whose turn it is; empty."""
        return self._key("posting")

    @cached_property
    def cooldowns(self) -> str:
        """ZSET, channel -> end of its cool-down (us); until ten minutes after the longest cool-down."""
        return self._key("cooldowns")

    @cached_property
    def pause(self) -> str:
        """HASH, why nobody posts (lua/include/pause.lua); only while posting is paused by what Slack answers."""
        return self._key("pause")

    @cached_property
    def silences(self) -> str:
        """HASH, id -> JSON of a silence that is in force or begins later (lua/include/silences.lua); empty."""
        return self._key("silences")

    @cached_property
    def silencing(self) -> str:
        """HASH, the version of the silences, the number of the last one, the categories they name; permanent."""
        return self._key("silencing")

    @cached_property
    def endings(self) -> str:
        """ZSET, id of a silence -> when it ends (us); empty."""
        return self._key("endings")

    @cached_property
    def firing_prefix(self) -> str:
        """What the keys of ``firing`` begin with."""
        return self._key("firing:")

    def firing(self, silence_id: str) -> str:
        """ZSET, subject -> instant (us), what a silence has suppressed and is not over; until its report is told."""
        return self.firing_prefix + silence_id

    @cached_property
    def paused(self) -> str:
        """HASH, ``*`` or category -> JSON, what is paused by hand; empty."""
        return self._key("paused")

    @cached_property
    def failures(self) -> str:
        """HASH, channel -> its posts in a row without a clear answer; lives an hour after the last."""
        return self._key("failures")

    @cached_property
    def failing(self) -> str:
        """HASH, channel -> its failures since Slack last answered a post, '' -> those that never left.

        It lives an hour after the last.
        """
        return self._key("failing")

    @cached_property
    def denials(self) -> str:
        """HASH, channel -> instant (us) at which it last asked for an operator; lives an hour after the last."""
        return self._key("denials")

    @cached_property
    def posted(self) -> str:
        """STRING, instant (us) of the last post of the fleet that succeeded; lives an hour."""
        return self._key("posted")

    @cached_property
    def turns(self) -> str:
        """HASH, channel -> turns taken in its line, by 16.

        Gone when the line's last event is handed out; where that was cancelled or has expired, after the channel's next
        event.
        """
        return self._key("turns")

    @cached_property
    def reopening(self) -> str:
        """HASH, how far lines and timers were let to ask anew, a page in each ``take``; empty."""
        return self._key("reopening")

    @cached_property
    def places(self) -> str:
        """HASH, channel as events name it -> Slack's id of it; permanent."""
        return self._key("places")

    @cached_property
    def abandoned(self) -> str:
        """ZSET, id -> first seen (us) in a stock worker's intermediate list; lives ten minutes after the last."""
        return self._key("abandoned")

    @cached_property
    def enqueued(self) -> str:
        """LIST, the last 10,000 to 11,000 ids that producers enqueued; lives a day.

        Without those that were looked through and taken.
        """
        return self._key("enqueued")

    def fold(self, name: str) -> str:
        """STRING, that a notification of this digest was enqueued; lives five minutes."""
        return self._key(f"fold:{name}")

    @cached_property
    def looked(self) -> str:
        """STRING, how many events had settled when ``enqueued`` was last looked through; lives a day."""
        return self._key("enqueued:looked")

    @cached_property
    def removed(self) -> str:
        """ZSET, id that somebody else removed from the queue -> when it was missed (us); seven days after the last."""
        return self._key("removed")

    @cached_property
    def sweep(self) -> str:
        """STRING, who swept last; lives for the interval between two sweeps."""
        return self._key("sweep")

    @cached_property
    def beat(self) -> str:
        """HASH, last call of a worker, grace after an interruption, who gets the odd place of a take; permanent."""
        return self._key("beat")

    @cached_property
    def seen(self) -> str:
        """ZSET, settled id -> instant (us) at which it is forgotten; lives as long as the last one is remembered."""
        return self._key("seen")

    @cached_property
    def threads(self) -> tuple[str, str]:
        """ZSET, thread -> instant (us) at which it is forgotten, and HASH, thread -> ts; both live as the last one."""
        return self._key("threads"), self._key("threads:roots")

    @cached_property
    def dead(self) -> str:
        """STREAM, dead letters, bounded; permanent."""
        return self._key("dead")

    @cached_property
    def dead_ids(self) -> str:
        """HASH, id -> entry of its dead letter; empty."""
        return self._key("dead:ids")

    @cached_property
    def dead_bytes(self) -> str:
        """STRING, how many bytes all dead letters are; empty."""
        return self._key("dead:bytes")

    @cached_property
    def decision_logs(self) -> tuple[str, str]:
        """STREAMS, the decision record in two parts, see ``decisions``; for seven days after the last."""
        return self._key("decisions:limited:log"), self._key("decisions:others:log")

    @cached_property
    def audit(self) -> str:
        """STREAM, the last 1,000 actions of operators; permanent."""
        return self._key("audit")

    @cached_property
    def decisions(self) -> tuple[str, str, str, str]:
        """HASHES, id -> entry of its decision: two parts of the record, each with its older half.

        The first has what was dropped, duplicates, and what limits, silences and quiet hours ended otherwise; the
        second has all else. Each lives for seven days after the last decision in it.
        """
        limited, others = self._key("decisions:limited"), self._key("decisions:others")
        return limited, f"{limited}:older", others, f"{others}:older"

    @cached_property
    def shadowed(self) -> str:
        """HASH, ``category:errors 10/30m`` -> how many that shadow limit would have refused; permanent."""
        return self._key("shadowed")

    @cached_property
    def tallies(self) -> str:
        """SET, ``digest:errors`` and the like: of what something was suppressed and not told; empty."""
        return self._key("tallies")

    @cached_property
    def tally_prefix(self) -> str:
        """What the keys of ``tally`` begin with."""
        return self._key("tally:")

    def tally(self, tally_id: str) -> str:
        """HASH, what was suppressed and not told; lives until all of it is told."""
        return self.tally_prefix + tally_id

    @cached_property
    def subject_prefix(self) -> str:
        """What the keys of ``subject`` begin with."""
        return self._key("subject:")

    def subject(self, name: str) -> str:
        """HASH, what is known of what events are about (lua/include/subjects.lua); as long as it says."""
        return self.subject_prefix + name

    @cached_property
    def editable(self) -> str:
        """ZSET, subject -> when the newest message about it was posted (us); lives as long as the last one."""
        return self._key("editable")

    @cached_property
    def counting(self) -> str:
        """ZSET, tally -> when the message that counts its repeats was posted (us); lives as long as the last one."""
        return self._key("counting")

    @cached_property
    def wake(self) -> str:
        """LIST, tokens that each wake one sleeping worker, 16 at most; empty."""
        return self._key("wake")

    @cached_property
    def scope_prefix(self) -> str:
        """What the keys of ``scope`` begin with."""
        return self._key("scope:")

    def scope(self, name: str) -> str:
        """ZSET, the slots of one scope (``category:errors``, ``pace:#ops``); lives at least its longest window."""
        return self.scope_prefix + name

    def log(self, name: str) -> str:
        """LIST, the instants charged to a scope without ids, the newest first; lives at least its longest window."""
        return self._key(f"log:{name}")

    def quota(self, name: str) -> str:
        """STRING, what was charged in the aligned windows of a scope without ids; lives for the longest of them."""
        return self._key(f"quota:{name}")

    def waiters(self, name: str) -> str:
        """ZSET, who waits in ``acquire`` for a scope -> arrival (us); lives as long as the last promise."""
        return self._key(f"waiters:{name}")

    def promises(self, name: str) -> str:
        """ZSET, who waits in ``acquire`` for a scope -> instant (us) it must come by; lives as long as the last."""
        return self._key(f"promises:{name}")

    @cached_property
    def bells(self) -> str:
        """What the channels begin with on which those who wait in ``acquire`` are woken early."""
        return self._key("bell:")

    @cached_property
    def limits_version(self) -> str:
        """STRING, version of the limits in force, of workers ``NUMBER-DIGEST``; permanent."""
        return self._key("limits:version")

    def named(self, name: str) -> str:
        """The key that a script knows by this name: that of the attribute, or of one part of several."""
        if name in _PARTS:
            attribute, place = _PARTS[name]
            return str(getattr(self, attribute)[place])
        return str(getattr(self, name))

    @cached_property
    def limits_versions(self) -> tuple[str, str]:
        """HASH, number -> version of the limits, the last 20; ZSET, digest of its content -> number; permanent."""
        return self._key("limits:files"), self._key("limits:digests")


_PARTS: Final = {
    "limited": ("decisions", 0),
    "limited_older": ("decisions", 1),
    "limited_log": ("decision_logs", 0),
    "others": ("decisions", 2),
    "others_older": ("decisions", 3),
    "others_log": ("decision_logs", 1),
}
