"""The producer for threads and plain code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from dispatcher.core.event import Event, job_id_for, new_event_id
from dispatcher.errors import GateUnavailable, QueueUnavailable, SendStopped
from dispatcher.jsonio import encode
from dispatcher.producer.chunks import OnDuplicate, SendResult, Source, chunked, resolved_text, sent_one
from dispatcher.producer.target import ANSWER_TIMEOUT_S, Target, target_from_env
from dispatcher.server.keys import Keys
from dispatcher.store.rq_keys import QueueKeys

if TYPE_CHECKING:
    from dispatcher.core.explain import Explanation
    from dispatcher.producer.chunks import Fields, ResolvedFields
    from dispatcher.server.connection import Client
    from dispatcher.store.enqueue import Enqueued, Job


class Producer:
    """Hands events over to the queue. Thread-safe; one per process is enough.

    Once a call returns, its events are on the server and each will be accounted for. ``QueueUnavailable`` leaves open
    whether they arrived: send again with the same ``id``, a repeat is recognised.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str = "dispatcher",
        queue: str = "notifications",
        max_waiting: int = 1_000_000,
    ) -> None:
        from dispatcher.store.intake import Intake

        self._client = client
        self._target: Target | None = None
        self._keys = Keys(namespace), QueueKeys(queue)
        self._intake = Intake(client, *self._keys, max_waiting=max_waiting, within_s=ANSWER_TIMEOUT_S)

    @classmethod
    def from_env(cls) -> Self:
        """A producer as the environment says (``DISPATCHER_REDIS_URL`` and the others); ``close`` ends it.

        Never starts a server: without a URL it uses the embedded one that runs in the data dir. Raises ``ConfigError``.
        """
        from dispatcher.server.connection import connect

        target = target_from_env()
        client = connect(target.url, timeout_s=ANSWER_TIMEOUT_S)
        producer = cls(client, namespace=target.namespace, queue=target.queue, max_waiting=target.max_waiting)
        producer._target = target
        return producer

    def send(
        self,
        category: str,
        text: str = "",
        *,
        id: str | None = None,  # noqa: A002 - the field's name on the wire
        on_duplicate: OnDuplicate = "ignore",
        **fields: Unpack[Fields],
    ) -> str:
        """Enqueue one event in one round trip; returns its id, of a duplicate too unless ``on_duplicate="raise"``.

        ``fields`` are those of ``Event``: channel, blocks, thread, thread_ts, priority, labels, created_at, max_age,
        mrkdwn.
        Raises ``InvalidEvent``, ``QueueFull``, ``QueueUnavailable`` (within 2 s), ``DuplicateEvent``; ``ConfigError``
        where the server answers and will not have it (another namespace's queue, no permission, a wrong password).
        """
        event = Event.from_payload({"category": category, "text": text, "id": id, **fields}, in_python=True)
        event_id = id or new_event_id()
        job = self._intake.calls.job(job_id_for(event_id), event, is_generated=id is None)
        (result,) = self._enqueue([job], [event])
        return sent_one(event_id, result, on_duplicate)

    def resolve(self, category: str, dedup_key: str, text: str | None = None, **fields: Unpack[ResolvedFields]) -> str:
        """Tell that what ``dedup_key`` names in this category is over; returns the id of the event that says so.

        What still waits to be posted about it is not posted any more; its newest message is marked as resolved.
        ``text`` is posted where that message cannot be edited. ``fields`` and errors are those of ``send``.
        """
        return self.send(category, resolved_text(dedup_key, text), dedup_key=dedup_key, status="resolved", **fields)

    def send_many(self, events: Iterable[Source], *, on_duplicate: OnDuplicate = "ignore") -> list[str]:
        """Enqueue many, in order; returns their ids, of duplicates too.

        They are streamed in chunks of 500, or of 4 MB, each all or nothing but for a queue that fills. What ends the
        call early tells how to go on (``SendStopped``): ``InvalidEvent``, which names the position from 0, comes
        before anything of its chunk is enqueued; at ``QueueFull`` the events before the first that found no room are
        enqueued. ``on_duplicate="raise"`` raises ``DuplicateEvent`` at the end, when all others are enqueued.
        """
        tally = SendResult()
        try:
            for chunk in chunked(self._intake.calls, events):
                tally.note(chunk, self._enqueue(chunk.jobs, chunk.sources))
        except SendStopped as error:
            tally.stopped(error)
            raise
        return tally.finished(on_duplicate)

    def enqueue_chunks(self, events: Iterable[Source]) -> Iterator[list[tuple[str, Enqueued]]]:
        """As ``send_many``, yielding what became of each event of each chunk; a full queue does not raise."""
        for chunk in chunked(self._intake.calls, events):
            yield list(zip(chunk.ids, self._enqueue(chunk.jobs, chunk.sources), strict=True))

    def explain(self, event_id: str) -> Explanation:
        """What happened to an event: where it is, or how it ended. The id is what ``send`` returned, or the RQ job's.

        Of one that was never handed over, or whose decision is no longer kept, ``state`` is ``unknown``. Writes
        nothing. Raises ``QueueUnavailable``.
        """
        from dispatcher.server.connection import Script, translate_refusals
        from dispatcher.settings.content import policy_if_readable
        from dispatcher.store.explanations import ExplainCalls, ids_of, the_one
        from dispatcher.store.forecast import SCRIPT

        def ask(script: str, keys: list[str], call: dict[str, Any]) -> Any:  # noqa: ANN401 - what Lua returns
            return Script(self._client, script, within_s=ANSWER_TIMEOUT_S)(keys, [encode(call)])

        calls = ExplainCalls(*self._keys)
        try:
            with translate_refusals(self._client):
                findings = calls.read(ask("explain", *calls.call(ids_of(event_id), payloads=True, limits=True)))
                policy = policy_if_readable(findings.limits)
                if (forecast := findings.forecast(self._keys[0], policy)) is not None:
                    findings = findings.with_rooms(forecast.read(ask(SCRIPT, forecast.keys, forecast.call)))
        except GateUnavailable as error:
            raise QueueUnavailable(str(error)) from error
        return the_one(findings, event_id)

    def close(self) -> None:
        """Close the connections of a producer from ``from_env``; a client that was handed in is its owner's matter."""
        if self._target is not None:
            self._client.close()
            self._target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _enqueue(self, jobs: list[Job], sources: list[Source]) -> list[Enqueued]:
        try:
            return self._intake.enqueue_jobs(jobs)
        except GateUnavailable as error:
            told = QueueUnavailable(str(error))
            told.rest = tuple(sources)
            raise told from error
