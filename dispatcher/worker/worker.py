"""The worker's loop: settle what was posted, take a batch, dispatch it, sleep until there is more."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final, cast

from redis.exceptions import OutOfMemoryError
from rq.worker import WorkerStatus

from dispatcher.core.pipeline import Capacity
from dispatcher.core.ports import Overtaken
from dispatcher.core.states import Leased, Sent, Settlement, Undecodable, boottime_s
from dispatcher.core.transitions import admitted_before
from dispatcher.core.units import US
from dispatcher.errors import ConfigError, GateUnavailable
from dispatcher.server.clients import ANSWER_TIMEOUT_S
from dispatcher.server.connection import Client, is_full, shorten_timeout, translate_outages, translate_refusals
from dispatcher.server.error_words import refused_login
from dispatcher.store.leases import AHEAD, Outbox, Taken
from dispatcher.store.snapshot import Books
from dispatcher.worker.child_process import SAME_FROM_PARENT_S, SAME_SIGNAL_S
from dispatcher.worker.housekeeping import Housekeeping
from dispatcher.worker.ports import FleetLimits, WorkerLog
from dispatcher.worker.post_pool import TOGETHER_S, PostPool, Standby
from dispatcher.worker.rq_presence import RqPresence

STOP_GRACE_S: Final = 5.0
"""How much longer than the Slack time-out a stop may take."""

_STOP_MARGIN_S: Final = 2.0
"""What the last steps of a stop may take; also how much later a post's deadline is than the sink's own."""

_RECONNECT_FROM_S: Final = 0.05
_RECONNECT_TO_S: Final = 1.0  # others take over 2 s after the server is back
_BURST_LOOK_S: Final = 0.05
_LAST_ANSWER_S: Final = 0.5  # how long to wait for a server that did not answer before, when no time is left

FULL_S: Final = 1.0
"""How long to sleep without a look at the lanes after a full server has refused it."""

YIELD_S: Final = 0.003
"""How long a worker that came too late leaves the next job to others. They take it in less, unless they are busy."""

FIRST_PAUSE_S: Final = 0.01
LONGEST_PAUSE_S: Final = 0.25
"""How long a worker does not listen to the lanes after it came too late: at first, and at most."""

_PIPE: Final = -1

_ANSWER_S: Final = 0.002  # within this time the server says that a lane still holds something


class Worker:
    """One worker process: it takes events from all lanes, decides them in batches, and posts in threads.

    RQ's registry lists the worker (``presence``). After ``heed_signals`` signals end or change its work.
    """

    def __init__(  # noqa: PLR0913 - collaborators, all by name, built in app
        self,
        *,
        name: str,
        client: Client,
        presence: RqPresence,
        limits: FleetLimits,
        outbox: Outbox,
        books: Books,
        housekeeping: Housekeeping,
        doorbell: Doorbell,
        log: WorkerLog,
        batch: int,
        senders: int,
        post_deadline_s: float,
        lease_s: float,
        clock: Callable[[], float] = boottime_s,
        is_hung_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self._client = client
        self._presence = presence
        self._senders = senders
        self._limits = limits
        self._outbox = outbox
        self._books = books
        self._housekeeping = housekeeping
        self._doorbell = doorbell
        self._log = log
        self._batch = batch
        self._beat_s = lease_s / 3
        self._beat_due = 0.0
        self._post_deadline_s = post_deadline_s
        self._clock = clock
        self._is_hung_up = is_hung_up
        self._is_stopping = False
        self._is_suspended = False
        self._asked_at = 0.0
        self._same_signal_s = SAME_SIGNAL_S
        self._taken_at = 0.0
        self._look_at = 0.0
        self._posts_wait = False
        self._took_new = False
        self._must_take = True
        self._was_posted = False
        self._last: Taken | None = None
        self._standby = Standby(batch, senders, clock)
        self._rereads = False
        self._rereads_later = False
        self._unsettled: list[Settlement] = []
        self._lost: GateUnavailable | None = None
        self._failure: Exception | None = None
        self._post_pool = PostPool(
            lambda: limits.dispatcher, size=senders, deadline_s=post_deadline_s, wake=doorbell.ring, clock=clock
        )

    def run(self, *, burst: bool = False) -> None:
        """Work until a signal comes or, in burst, until no admitted event is left to post; then sign off.

        Raises ``ConfigError`` if the limits in force cannot be read, or the server refuses us. Any other exception is a
        defect of ours.
        """
        taken: Taken | None = None
        try:
            while (taken := self.next_batch(taken, burst=burst)) is not None:
                self.dispatch(taken)
        except Exception as error:
            self._failure = error
            raise
        finally:
            self.sign_off()

    def next_batch(self, before: Taken | None = None, *, burst: bool = False) -> Taken | None:
        """Settle the posts that ended, and wait for the next batch; None when the work must end.

        If all of the batch ``before`` is decided and it was all that there was, this sleeps before it takes again.
        """
        while not self._is_stopping:
            try:
                self._unsettled += self._post_pool.collect()
                if not all(isinstance(each.outcome, Sent) for each in self._unsettled):
                    self._settle_posts()  # before others start: posting may be paused now
                if (parked := self._take_parked()) is not None:
                    return parked
                self._start_standby()
                self._settle_posts()
                self._beat()
                self._reread_limits()
                if self._standby and self._post_pool.free:
                    continue  # posts ended while others were settled, or parked events go first
                if self._standby.has_plenty:
                    self._sleep_until(self._standby.until, lanes=False)
                    continue
                decided, before = before, None  # if the server goes away meanwhile, a take follows
                if decided is not None and self._outbox.is_decided and not self._must_take and not burst:
                    self._sleep(decided, burst=burst)
                    continue
                taken = self._take()
                self._doorbell.after_take(has_brought=taken.has_brought)
                if taken.batch:
                    return taken
                if burst and self._is_done(taken):
                    return None
                self._sleep(taken, burst=burst)
            except GateUnavailable as error:
                self._reconnect(error)
        return None

    def dispatch(self, taken: Taken) -> None:
        """Decide a batch by the limits in force, and start its history scans and posts."""
        self._presence.state = WorkerStatus.BUSY
        try:
            for scan in self._limits.dispatcher.scans(taken.batch, taken.now_us) if taken.old else ():
                self._post_pool.start(scan)
            self._standby.open(self._limits.version, self._post_pool.post_s)
            going = self._decide(taken, taken.batch)
            self._must_take |= going < len(taken.batch)
            self._was_posted = 2 * going > len(taken.batch) + sum(len(each.names) for each in taken.prefiltered)
        except GateUnavailable as error:
            self._reconnect(error)

    def _decide(self, taken: Taken, batch: Sequence[Leased | Undecodable]) -> int:
        """Decide events that came with ``taken`` or before, by the limits in force, whichever these are in the end.

        Returns how many of them are being posted or stand by.
        """
        before = self._post_pool.free - len(self._standby)
        while batch:
            has_new = taken.old < len(taken.batch)
            free = 0 if self._standby and has_new else self._post_pool.free  # what stands by comes before new events
            capacity = Capacity(free, self._post_pool.start, self._standby)
            try:
                self._limits.dispatcher.dispatch(batch, taken.now_us, capacity, taken.silences)
            except Overtaken as error:
                batch = error.undecided
                self._follow()
            else:
                break
        return before - (self._post_pool.free - len(self._standby))

    def _take_parked(self) -> Taken | None:
        """While events stand by, the free senders are for parked ones first: these wait longer. None without any."""
        free = self._post_pool.free
        if not (free and self._posts_wait and self._standby) or self._outbox.ahead:
            return None
        taken = self._take(only_due=True)
        self._must_take |= not taken.batch  # nobody sleeps by this answer
        return taken if taken.batch else None

    def _start_standby(self) -> None:
        """Start the posts of events that stand by, as far as senders are free. What may stand by no more is parked.

        If one is held up by a pause or a cool-down, the others are tried at once: else each would be parked by itself.
        """
        is_held_up = False
        while self._last is not None and self._standby:
            if self._standby.must_ask_again(self._limits.version):
                self._standby.close()
                self._decide_again([admitted_before(each) for each in self._standby.all()])
                return
            free = self._post_pool.free
            candidates = self._standby.all() if is_held_up else self._standby.next(free)
            if not candidates:
                return
            try:
                begun = self._limits.dispatcher.start(candidates, Capacity(free, self._post_pool.start))
            except Overtaken as error:
                self._follow()
                self._decide_again(error.undecided)
                return
            has_parked = len(begun.posts) < len(candidates)
            self._posts_wait |= has_parked
            self._must_take |= has_parked
            is_held_up = begun.is_held_up
            if len(begun.posts) < min(free, len(candidates)) and not is_held_up:
                return  # parked events go first

    def _decide_again(self, batch: Sequence[Leased | Undecodable]) -> None:
        """Decide events that stood by, by other limits. Some may wait then."""
        if self._last is not None:
            self._decide(self._last, batch)
            self._must_take = True

    def _park_standby(self) -> None:
        """Park the events that stand by, so that any worker can post them."""
        if self._standby:
            try:
                self._limits.dispatcher.start(self._standby.all(), Capacity(0))
            except Overtaken:
                return  # they are given back

    def _follow(self) -> None:
        self._standby.close()  # for what other limits admit; it is opened with the next batch
        self._limits.follow()

    def sign_off(self) -> None:
        """Finish the posts, give the other events back, leave. If the server is away, the lease ends by itself.

        A post that is still in flight stays leased, and the worker that takes it over reconciles it: to give it back
        would say that it was not made. After a failure nothing is given back: if an event caused the failure, the end
        of its lease counts as a death. ``ConfigError`` is an exception to this: no event can cause it.
        """
        returned = 0
        self._doorbell.close()  # long before the lease ends, which wakes another worker
        try:
            returned = self._finish_posts()
            self._tell_arrivals()
            if self._may_give_back:
                returned += self._outbox.give_back(self._in_hand())
            self._presence.leave()
        except GateUnavailable as error:
            self._log.say("worker.stopped", worker=self.name, detail=str(error))
            return
        self._log.say("worker.stopped", worker=self.name, given_back=returned)

    def heed_signals(self, *, has_parent: bool = False) -> None:
        """From now on signals end or change the work of the loop, also if the loop has not begun yet.

        ``has_parent``: this process is the child of a supervisor.
        """
        self._same_signal_s = SAME_FROM_PARENT_S if has_parent else SAME_SIGNAL_S
        signal.signal(signal.SIGINT, self.request_stop)
        signal.signal(signal.SIGTERM, self.request_stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            signal.signal(signal.SIGHUP, self._hear_hangup)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # see worker.child_process

    def stop(self) -> None:
        """Finish the posts in flight, give the rest back, and end. Any thread may call it, also again."""
        if not self._is_stopping:
            self._asked_at = self._clock()  # first: a signal that comes between the two counts from it
            self._is_stopping = True
            self._doorbell.ring()

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """First signal: ``stop``. Second signal: end at once; leases end by themselves."""
        del frame
        if not self._is_stopping:
            self.stop()
        elif self._clock() - self._asked_at > self._same_signal_s:
            os._exit(128 + signum)

    def _hear_hangup(self, signum: int, frame: FrameType | None) -> None:
        if self._is_hung_up():
            self.request_stop(signum, frame)
        else:
            self._rereads = True
            self._doorbell.ring()

    def _settle_posts(self) -> None:
        """Make the results of ended posts and history scans durable.

        An event that was not posted may wait now, or have changed when another one may go. A take says when that is.
        """
        self._unsettled += self._post_pool.collect()
        if self._unsettled:
            self._limits.dispatcher.settle(self._unsettled)
            self._must_take |= not all(isinstance(each.outcome, Sent) and not each.is_scan for each in self._unsettled)
            self._unsettled = []

    def _beat(self) -> None:
        """Tell RQ and the other workers that this one lives; does so every third of a lease."""
        if self._clock() < self._beat_due:
            return
        self._presence.enter()
        self._look_at = self._clock() + self._outbox.renew() / US
        self._presence.senders = (self._senders, self._senders - self._post_pool.free)
        self._presence.renew(self._beat_s)
        self._beat_due = self._clock() + self._beat_s
        self._rereads, self._rereads_later = self._rereads or self._rereads_later, False
        self._housekeeping.keep_up(self._limits.dispatcher.policy.dead_letters)

    def _reread_limits(self) -> None:
        """Obey a SIGHUP. What a full server refused is tried again with the next beat; the worker goes on."""
        if self._rereads:
            self._rereads = False
            try:
                self._limits.reread()
            except GateUnavailable as error:
                if is_full(error):
                    self._rereads_later = True
                else:
                    self._rereads = True
                raise

    def _take(self, *, only_due: bool = False) -> Taken:
        """Take a batch, and let the server take the next ones while this one is decided.

        While parked events wait for a sender, nothing is prefetched, and every other batch holds no new events. So
        posts start first, and are on their way while the server looks at new events. ``only_due``: this batch holds no
        new events. Nothing is prefetched either after a batch that was mostly posted: the next ones would wait for the
        senders.
        """
        free = self._post_pool.free
        only_due |= free > 0 and self._posts_wait and self._took_new and not self._outbox.ahead
        was_suppressed = self._last is not None and self._last.has_brought and not self._was_posted
        may_prefetch = was_suppressed and not self._standby
        starts = 0 if self._standby else free  # what stands by comes before new events
        new = min(self._batch, self._standby.room + starts) if self._standby.is_open else self._batch
        taken = self._last = self._outbox.take(0 if only_due else new, free)
        self._taken_at, self._took_new = self._clock(), not only_due
        self._look_at = self._instant(taken, taken.lease_us)
        self._must_take, self._was_posted = False, False
        self._posts_wait = taken.posts_wait
        try:
            for _ in range(AHEAD if may_prefetch and not (self._is_stopping or self._posts_wait) else 0):
                self._outbox.prefetch(taken, self._batch, self._post_pool.free)
        finally:
            self._tell_ended(taken)
        self._heed(taken)
        return taken

    def _heed(self, taken: Taken) -> None:
        """Heed what the server said with a batch: that the workers are suspended, other limits, silences."""
        if taken.suspended != self._is_suspended:
            self._tell_suspension(is_suspended=taken.suspended)
        if taken.version != self._limits.version:
            self._follow()
        if taken.silences.each or self._housekeeping.silences:
            self._housekeeping.tell_silences(taken.silences, taken.now_us)

    def _tell_suspension(self, *, is_suspended: bool) -> None:
        self._is_suspended = is_suspended
        if is_suspended:
            detail = "'rq suspend' stops all RQ workers of the database; 'rq resume' lets them go on"
            self._log.say("worker.suspended", worker=self.name, detail=detail)
        else:
            self._log.say("worker.resumed", worker=self.name)

    def _tell_ended(self, taken: Taken) -> None:
        """Write one log line for each event that ended while it was taken."""
        if taken.prefiltered:
            self._log.prefiltered(taken.prefiltered)
        if taken.duplicates:
            self._log.duplicates(taken.duplicates)

    def _tell_arrivals(self) -> None:
        """Wait for the prefetched batches, and tell which of their events ended. The caller gives the others back."""
        for taken in self._outbox.arrivals():
            self._tell_ended(taken)

    def _is_done(self, taken: Taken) -> bool:
        has_more = taken.prefiltered or self._outbox.ahead or self._standby
        return not has_more and (taken.suspended or self._books.is_drained())

    def _sleep(self, taken: Taken, *, burst: bool) -> None:
        """Sleep until there may be something to take. Does not sleep while there is more to take.

        Posts that end meanwhile are settled, and the lease is prolonged. If Slack has accepted them, this sleeps on:
        the script rings if one of them lets another event go earlier than all that wait. A worker that can post nothing
        at the instant when a parked event may go wakes another worker.
        """
        can_start = self._standby and self._post_pool.free
        if taken.prefiltered or self._outbox.ahead or can_start or (taken.more and not taken.suspended):
            return
        self._presence.state = WorkerStatus.SUSPENDED if taken.suspended else WorkerStatus.IDLE
        could_post = self._post_pool.free > 0
        until = [math.inf]
        next_at, busy_at = self._instant(taken, taken.next_us), self._instant(taken, taken.next_busy_us)
        wakes_another = not could_post and self._taken_at < next_at < busy_at  # else a script has rung
        until.append(next_at if could_post or wakes_another else busy_at)
        if burst:
            until.append(self._clock() + _BURST_LOOK_S)  # no bell rings when others settle the last events
        if taken.suspended:
            until.append(self._clock() + 1.0)
        if self._standby:
            until.append(self._standby.until)
        while not self._sleep_until(min(*until, self._look_at), lanes=not taken.suspended):
            is_time = self._clock() >= min(*until, self._look_at)
            if wakes_another and self._clock() >= next_at and not self._post_pool.free:
                self._outbox.wake_another()
            if self._is_stopping or self._rereads or is_time or (not could_post and self._post_pool.has_result):
                return
            self._settle_posts()
            self._beat()
            if self._must_take or self._rereads or (not could_post and self._post_pool.free):
                return

    def _instant(self, taken: Taken, us: int | None) -> float:
        """An instant of the server's clock by this worker's."""
        return math.inf if us is None else self._taken_at + (us - taken.now_us) / US

    def _sleep_until(self, instant: float, *, lanes: bool) -> bool:
        """Sleep until the instant, the next beat or a ring; whether the server rang."""
        left_s = min(instant, self._beat_due) - self._clock()
        if (overdue_s := self._post_pool.overdue_in_s()) is not None:
            left_s = min(left_s, overdue_s)
        wake = self._post_pool.free > 0
        rang = self._doorbell.sleep(left_s, lanes=lanes, wake=wake)
        end = min(self._clock() + TOGETHER_S, instant)
        while not rang and self._post_pool.others_end_soon and (left_s := end - self._clock()) > 0:
            rang = self._doorbell.sleep(left_s, lanes=lanes, wake=wake)
        return rang

    @property
    def _may_give_back(self) -> bool:
        return self._failure is None or isinstance(self._failure, ConfigError)

    def _finish_posts(self) -> int:
        """Give back the events that are not in flight, and settle the others, for as long as a stop may take.

        Returns how many events were given back. A server that is away may come back meanwhile. Raises
        ``GateUnavailable`` if it is still away when time is up or nothing is in hand; leases end by themselves.
        """
        end = (self._asked_at or self._clock()) + self._post_deadline_s + STOP_GRACE_S - _STOP_MARGIN_S
        returned = 0
        if not self._may_give_back:
            self._standby.all()  # they stay leased
        while True:
            left = end - self._clock()
            if self._lost is not None:
                shorten_timeout(self._client, min(ANSWER_TIMEOUT_S, max(left, _LAST_ANSWER_S)))
            try:
                if self._lost is None or self._in_hand() or left > ANSWER_TIMEOUT_S:
                    if self._may_give_back:
                        self._park_standby()
                        returned += self._keep_only_in_hand()
                    self._settle_posts()
                    self._lost = None
            except GateUnavailable as error:
                self._lost = error
            if left <= 0 or not self._in_hand():
                if self._lost is not None:
                    raise self._lost
                return returned
            pause_s = _RECONNECT_FROM_S * 4 if self._lost else self._beat_s
            if (overdue_s := self._post_pool.overdue_in_s()) is not None:
                pause_s = min(pause_s, overdue_s)
            self._doorbell.sleep(min(left, pause_s), server=False)

    def _in_hand(self) -> list[str]:
        return [*self._post_pool.ids, *(each.subject.id for each in self._unsettled), *self._standby.ids]

    def _keep_only_in_hand(self) -> int:
        """Give back all events that are not in hand, also prefetched ones; returns how many."""
        self._tell_arrivals()
        return self._outbox.keep_only(self._in_hand())

    def _reconnect(self, error: GateUnavailable) -> None:
        """Go on after the server was away: renew first, give back undecided events, keep the posts in flight.

        Raises ``ConfigError`` when the server refuses us: this process keeps the URL that it began with.
        """
        self._log.say("redis.lost", detail=str(error))
        lost_at, pause_s = self._clock(), _RECONNECT_FROM_S
        self._lost = error
        with translate_refusals(self._client):
            if refused_login(error) is not None:  # connections that were made before may go on to work
                raise error
        while not self._is_stopping:
            self._doorbell.close()
            self._doorbell.sleep(pause_s, server=False)
            try:
                with translate_refusals(self._client):
                    returned = self._keep_only_in_hand()
                    self._presence.renew(self._beat_s)
            except GateUnavailable:
                pause_s = min(pause_s * 2, _RECONNECT_TO_S)
                self._unsettled += self._post_pool.collect()
                continue
            self._lost, self._must_take = None, True
            away_s = round(self._clock() - lost_at, 3)
            self._log.say("redis.found", away_s=away_s, given_back=returned)
            return


class Doorbell:
    """Sleeps without polling, and wakes the loop: all that may ring is awaited at once.

    There is one blocking command for each lane and one for the wake list. ``BLMOVE lane lane LEFT LEFT`` is answered as
    soon as the lane holds a job and changes nothing; ``BLPOP`` on the wake list takes a token that a script leaves for
    one sleeper when an earlier instant was set. A pipe lets this process wake itself.

    One job rings at every worker that listens to its lane, and one of them gets it. A worker that came too late leaves
    the next jobs to the others. After a lane rang, it waits for ``YIELD_S``, and wakes only if the lane still holds
    something. Before it listens to the lanes again, it pauses; each further pause is twice as long. Both end when a
    take of this worker brings something.

    A token that comes to a worker that can post nothing is passed on by ``wake_another``.

    Not thread-safe but for ``ring``, which also signal handlers may call.
    """

    def __init__(
        self,
        client: Client,
        lanes: Sequence[str],
        wake: str,
        wake_another: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = client.connection_pool
        self._wake_another = wake_another
        self._clock = clock
        self._commands: list[tuple[Any, ...]] = [("BLMOVE", lane, lane, "LEFT", "LEFT", 0) for lane in lanes]
        self._commands.append(("BLPOP", wake, 0))
        self._lanes = set(range(len(lanes)))
        self._token = len(lanes)
        self._connections: dict[int, Any] = {}
        self._armed: set[int] = set()
        self._full_until = 0.0
        self._pause_until = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._woken_by_lane = False
        self._yields = False
        self._inner, self._outer = os.pipe()
        os.set_blocking(self._inner, False)
        os.set_blocking(self._outer, False)

    def ring(self) -> None:
        """Wake the loop of this process; rings before it sleeps are not lost."""
        try:
            os.write(self._outer, b"!")
        except BlockingIOError:
            return  # the pipe is full of rings already

    def after_take(self, *, has_brought: bool) -> None:
        """Tell whether the take after a sleep brought anything. If not, and a lane rang, this worker came too late."""
        if has_brought:
            self._yields, self._pause_s, self._pause_until = False, FIRST_PAUSE_S, 0.0
        elif self._woken_by_lane:
            self._come_too_late()
        self._woken_by_lane = False

    def sleep(self, seconds: float, *, lanes: bool = True, wake: bool = True, server: bool = True) -> bool:
        """Return after ``seconds``, or as soon as something rings; whether the server rang.

        ``lanes=False`` sleeps through new jobs (suspended), ``wake=False`` leaves the tokens to others (it could post
        nothing; a token that comes all the same is passed on), ``server=False`` listens to this process alone. Raises
        ``GateUnavailable`` when the server goes away.
        """
        end = self._clock() + seconds
        while True:
            now = self._clock()
            if self._full_until > now:
                lanes, end = False, min(end, self._full_until)
            pause_s = self._pause_until - now if lanes and server else 0.0
            if pause_s > 0:
                rang = self._listen(min(pause_s, end - now), lanes=False, wake=wake)
                if rang or now + pause_s >= end:
                    break
                continue
            rang = self._listen(end - now, lanes=lanes, wake=wake, server=server)
            is_left_to_others = self._yields and lanes and rang and rang <= self._lanes
            if not is_left_to_others:
                break
            rang = self._listen(YIELD_S, lanes=False, wake=wake) or self._listen(_ANSWER_S, lanes=True, wake=wake)
            if rang:
                break
            self._come_too_late()
        return bool(rang - {_PIPE})

    def _come_too_late(self) -> None:
        self._yields, self._woken_by_lane = True, False
        self._pause_until = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _listen(self, seconds: float, *, lanes: bool, wake: bool, server: bool = True) -> set[int]:
        """What rang within ``seconds``: the number of a command, or ``_PIPE``."""
        waiting = {self._inner: _PIPE}
        if server:
            with translate_outages():
                for index in range(len(self._commands)):
                    if (lanes if index in self._lanes else wake) or index in self._armed:
                        waiting[self._arm(index)] = index
        ready, _, _ = select.select(list(waiting), [], [], max(0.0, seconds))
        rang = {waiting[descriptor] for descriptor in ready}
        for index in rang:
            if index == _PIPE:
                self._drain()
            else:
                self._hear(index)
        if not wake and self._token in rang:
            self._wake_another()
        return rang if wake else rang - {self._token}

    def close(self) -> None:
        """Drop the blocking connections; the next sleep opens them again. The pool counts each of them once."""
        for connection in self._connections.values():
            connection.disconnect()
        self._armed.clear()

    def _arm(self, index: int) -> int:
        connection = self._connections.get(index)
        if connection is None:
            connection = self._connections[index] = cast("Any", self._pool.make_connection())
        if index not in self._armed:
            connection.connect()
            connection.send_command(*self._commands[index])
            self._armed.add(index)
        return int(connection._sock.fileno())  # noqa: SLF001 - redis-py has no public way to wait for several

    def _hear(self, index: int) -> None:
        self._armed.discard(index)
        self._woken_by_lane = self._woken_by_lane or index in self._lanes
        with translate_outages():
            try:
                self._connections[index].read_response()
            except OutOfMemoryError:  # BLMOVE might need memory; nobody can enqueue meanwhile
                self._full_until = self._clock() + FULL_S

    def _drain(self) -> None:
        try:
            while os.read(self._inner, 4096):
                pass
        except BlockingIOError:
            return
