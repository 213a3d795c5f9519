"""The worker's loop on RQ's worker: registered and steered like one, but taking batches and never running a job.

RQ's registry clean-up and failure path never run here: they import what a job's hash names. What is overridden: how
work is taken (``dequeue_job_and_maintain_ttl``), done (``execute_job``), maintenance, heartbeat, suspension, signals.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final

from rq.queue import Queue
from rq.serializers import JSONSerializer
from rq.worker import WorkerStatus

from dispatcher.boottime import boottime_s
from dispatcher.connection import ANSWER_TIMEOUT_S, Client, answered, hurry
from dispatcher.errors import ConfigError, GateUnavailable
from dispatcher.leased import Leased, Spoiled
from dispatcher.model import US, Lane
from dispatcher.outcome import Settlement
from dispatcher.ports import Overtaken
from dispatcher.queue_keys import QueueKeys
from dispatcher.store.outbox import AHEAD, Outbox
from dispatcher.store.snapshot import Books
from dispatcher.store.taken import Taken
from dispatcher.worker.collaborators import CurrentCourier, FleetLimits, WorkerLog
from dispatcher.worker.doorbell import Doorbell
from dispatcher.worker.mute_watch import MuteWatch
from dispatcher.worker.outbox_watch import OutboxWatch
from dispatcher.worker.registered import RegisteredWorker
from dispatcher.worker.senders import Senders
from dispatcher.worker.upkeep import Upkeep

STOP_GRACE_S: Final = 5.0
"""Beyond the Slack time-out, how long a stop may take."""

_STOP_MARGIN_S: Final = 2.0
"""What the last steps may take, and how much later than the sink's own deadline a post's is."""

SAME_SIGNAL_S: Final = 1.0

_RECONNECT_FROM_S: Final = 0.05
_RECONNECT_TO_S: Final = 1.0  # others take over 2 s after the server is back
_BURST_LOOK_S: Final = 0.05
_LAST_ANSWER_S: Final = 0.5  # of a server that did not answer before, when there is no time left


class Worker(RegisteredWorker):
    """One worker process. ``work(burst=...)`` runs until a signal, or in burst until nothing admitted is left to post.

    After it ``failure`` holds what ended the loop otherwise.
    """

    def __init__(  # noqa: PLR0913 - collaborators, all by name, built in app
        self,
        *,
        name: str,
        client: Client,
        queue: QueueKeys,
        limits: FleetLimits,
        outbox: Outbox,
        books: Books,
        upkeep: Upkeep,
        doorbell: Doorbell,
        log: WorkerLog,
        batch: int,
        senders: int,
        post_deadline_s: float,
        lease_s: float,
        clock: Callable[[], float] = boottime_s,
        is_hung_up: Callable[[], bool] = lambda: False,
    ) -> None:
        lanes = [Queue(queue.lane_name(lane), connection=client, serializer=JSONSerializer) for lane in Lane]
        super().__init__(lanes, name=name, connection=client, serializer=JSONSerializer)
        self.failure: Exception | None = None
        self._client = client
        self._limits = limits
        self._rereads = False
        self._is_hung_up = is_hung_up
        self._outbox = outbox
        self._books = books
        self._upkeep = upkeep
        self._doorbell = doorbell
        self._tell = log
        self._watch = OutboxWatch(outbox, log)
        self._mutes = MuteWatch(log.say)
        self._batch = batch
        self._beat_s = lease_s / 3
        self._beat_due = 0.0
        self._has_entered = False
        self._post_deadline_s = post_deadline_s
        self._clock = clock
        self._asked_at = 0.0
        self._unsettled: list[Settlement] = []
        self._lost: GateUnavailable | None = None
        self._senders = Senders(
            CurrentCourier(limits), size=senders, deadline_s=post_deadline_s, wake=doorbell.ring, clock=clock
        )

    def dequeue_job_and_maintain_ttl(  # type: ignore[override]  # RQ's loop never looks inside the pair
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Taken, None] | None:
        """The next batch; None ends the loop. ``timeout`` is None in burst, as RQ's loop has it."""
        del max_idle_time
        try:
            return self._next_batch(burst=timeout is None)
        except Exception as error:  # noqa: BLE001 - RQ's loop would log it and go on to exit 0
            self.failure = error
            return None

    def execute_job(self, job: Taken, queue: None) -> None:  # type: ignore[override]  # the pair from above
        """Dispatch a batch and start its posts."""
        del queue
        self._state = WorkerStatus.BUSY
        try:
            self._dispatch(job)
        except Exception as error:  # noqa: BLE001 - as above
            self.failure = error
            self._stop_requested = True

    @property
    def was_stopped(self) -> bool:
        """Whether a signal (or a failure) asked the loop to end."""
        return bool(self._stop_requested)

    def heed_signals(self) -> None:
        """From now on a signal ends or changes the loop's work, though it may not have begun yet."""
        signal.signal(signal.SIGINT, self.request_stop)
        signal.signal(signal.SIGTERM, self.request_stop)
        signal.signal(signal.SIGHUP, self._hear_hangup)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # see worker.child

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """First signal: finish the posts in flight, give the rest back. Second: stop at once, leases end.

        One that follows within a second is the same one: a service manager and our parent may both send it.
        """
        del frame
        if not self._stop_requested:
            self._stop_requested = True
            self._asked_at = self._clock()
            self._doorbell.ring()
        elif self._clock() - self._asked_at > SAME_SIGNAL_S:
            os._exit(128 + signum)

    def _hear_hangup(self, signum: int, frame: FrameType | None) -> None:
        if self._is_hung_up():
            self.request_stop(signum, frame)
        else:
            self._rereads = True
            self._doorbell.ring()

    def teardown(self) -> None:
        """Finish, give back, sign off; a server that is away changes nothing of that: the lease ends by itself.

        A post that is still in flight stays leased, and whoever takes it over looks it up: to give it back would say
        that it was not made. After a failure nothing is given back: if an event has caused it, the end of its lease
        counts as a death. That the limits cannot be read is no event's fault.
        """
        returned = 0
        try:
            returned = self._finish_posts()
            self._watch.tell_trimmed()
            if self._is_blameless:
                returned += self._outbox.give_back(self._in_hand())
            self._watch.tell_ended()
            self._doorbell.close()
            with answered():
                super().teardown()  # type: ignore[no-untyped-call]  # RQ's
        except GateUnavailable as error:
            self._watch.tell_ended()
            self._tell.say("worker.stopped", worker=self.name, detail=str(error))
            return
        self._tell.say("worker.stopped", worker=self.name, given_back=returned)

    @property
    def _is_blameless(self) -> bool:
        return self.failure is None or isinstance(self.failure, ConfigError)

    def _next_batch(self, *, burst: bool) -> tuple[Taken, None] | None:
        while not self._stop_requested:
            try:
                self._enter()
                self._settle_posts()
                self._beat()
                if self._rereads:
                    self._rereads = False
                    self._limits.reread()
                taken = self._outbox.take(self._batch, self._senders.free)
                self._take_ahead(taken)
                self._watch.tell_ended()
                self._limits.follow(taken.version)
                self._mutes.tell(taken.muted)
                if taken.batch:
                    return taken, None
                if taken.turned_away or self._outbox.ahead:
                    continue
                if burst and (taken.suspended or self._books.is_drained()):
                    return None
                if not taken.more or taken.suspended:
                    self._sleep(taken, burst=burst)
            except GateUnavailable as error:
                self._reconnect(error)
        return None

    def _sleep(self, taken: Taken, *, burst: bool) -> None:
        self._state = WorkerStatus.SUSPENDED if taken.suspended else WorkerStatus.IDLE
        now = self._clock()
        until = [self._beat_due - now]
        if taken.next_us is not None:
            until.append((taken.next_us - taken.now_us) / US)
        if (overdue_s := self._senders.overdue_in_s()) is not None:
            until.append(overdue_s)
        if burst:
            until.append(_BURST_LOOK_S)  # others may hold the last events, and nobody rings for that
        if taken.suspended:
            until.append(1.0)
        self._doorbell.sleep(min(until), lanes=not taken.suspended, wake=self._senders.free > 0)

    def _settle_posts(self) -> None:
        self._unsettled += self._senders.collect()
        if self._unsettled:
            self._limits.dispatcher.settle(self._unsettled)
            self._unsettled = []
            self._watch.tell_turned()

    def _dispatch(self, taken: Taken) -> None:
        try:
            for lookup in self._limits.dispatcher.lookups(taken.batch, taken.now_us) if taken.old else ():
                self._senders.start(lookup)
            batch: Sequence[Leased | Spoiled] = taken.batch
            while batch:
                dispatcher, free = self._limits.dispatcher, self._senders.free
                try:
                    dispatcher.dispatch(batch, taken.now_us, free, taken.muted, begin=self._senders.start)
                except Overtaken as error:
                    batch = error.undecided
                    self._limits.follow(error.version)
                else:
                    return
        except GateUnavailable as error:
            self._reconnect(error)

    def _take_ahead(self, taken: Taken) -> None:
        if not self._stop_requested:
            for _ in range(AHEAD):
                self._outbox.take_ahead(taken, self._batch, self._senders.free)

    def _enter(self) -> None:
        if not self._has_entered:
            with answered():
                self.enter()
            self._has_entered = True

    def _beat(self) -> None:
        """Tell RQ and the fleet that this worker lives, when a third of its lease has passed."""
        if self._clock() < self._beat_due:
            return
        with answered():
            self._outbox.renew()
            self.register_alive()
        self._beat_due = self._clock() + self._beat_s
        self._watch.tell_trimmed(self._upkeep.keep_up(self._tell.say, self._limits.dispatcher.policy.dead_letters))

    def _finish_posts(self) -> int:
        """Give back what is not in flight and settle what is, as long as a stop may take; returns how many went back.

        A server that is away may come back meanwhile. Raises ``GateUnavailable`` where it is still away and nothing is
        left to be done: leases end by themselves.
        """
        end = (self._asked_at or self._clock()) + self._post_deadline_s + STOP_GRACE_S - _STOP_MARGIN_S
        returned = 0
        while True:
            left = end - self._clock()
            if self._lost is not None:
                hurry(self._client, min(ANSWER_TIMEOUT_S, max(left, _LAST_ANSWER_S)))
            try:
                if self._lost is None or self._in_hand() or left > ANSWER_TIMEOUT_S:
                    if self._is_blameless:
                        returned += self._outbox.keep_only(self._in_hand())
                    self._settle_posts()
                    self._lost = None
            except GateUnavailable as error:
                self._lost = error
            if left <= 0 or not self._in_hand():
                if self._lost is not None:
                    raise self._lost
                return returned
            pause_s = _RECONNECT_FROM_S * 4 if self._lost else self._beat_s
            if (overdue_s := self._senders.overdue_in_s()) is not None:
                pause_s = min(pause_s, overdue_s)
            self._doorbell.sleep(min(left, pause_s), server=False)

    def _in_hand(self) -> list[str]:
        return [*self._senders.ids, *(each.subject.id for each in self._unsettled)]

    def _reconnect(self, error: GateUnavailable) -> None:
        """Come back after the server was away: renew first, give back what was in hand, keep the posts in flight."""
        self._tell.say("redis.lost", detail=str(error))
        lost_at, pause_s = self._clock(), _RECONNECT_FROM_S
        self._lost = error
        while not self._stop_requested:
            self._doorbell.close()
            self._doorbell.sleep(pause_s, server=False)
            try:
                returned = self._outbox.keep_only(self._in_hand())
                with answered():
                    self.register_alive()
            except GateUnavailable:
                pause_s = min(pause_s * 2, _RECONNECT_TO_S)
                self._unsettled += self._senders.collect()
                continue
            self._lost = None
            self._watch.tell_ended()
            away_s = round(self._clock() - lost_at, 3)
            self._tell.say("redis.found", away_s=away_s, given_back=returned)
            return
