"""The producer for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from dispatcher.core.event import Event, job_id_for, new_event_id
from dispatcher.errors import GateUnavailable, QueueUnavailable, SendStopped
from dispatcher.jsonio import encode
from dispatcher.producer.blocking import (
    ANSWER_TIMEOUT_S,
    Chunk,
    OnDuplicate,
    SendResult,
    Source,
    Target,
    check_on_duplicate,
    chunked,
    resolved_text,
    sent_one,
    target_from_env,
    unavailable,
)
from dispatcher.server.keys import Keys
from dispatcher.server.within import Within
from dispatcher.store.rq_keys import QueueKeys

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from dispatcher.core.explain import Explanation
    from dispatcher.producer.blocking import Fields, ResolvedFields
    from dispatcher.server.embedded import EmbeddedServer
    from dispatcher.store.intake import EnqueueCalls, Enqueued, Job


_TOO_SLOW: Final = f"Redis did not answer within {ANSWER_TIMEOUT_S:g} s"


class AsyncProducer:
    """``Producer`` for asyncio: the same promises, arguments and errors. For one event loop at a time.

    ``client`` is of ``redis.asyncio``. Tasks may share it; a task that is cancelled while it sends leaves open whether
    its event arrived.
    """

    def __init__(
        self,
        client: Redis,
        *,
        namespace: str = "dispatcher",
        queue: str = "notifications",
        max_waiting: int = 1_000_000,
    ) -> None:
        from dispatcher.store.intake import AsyncIntake

        self._client = client
        self._target: Target | None = None
        self._keys = Keys(namespace), QueueKeys(queue)
        self._intake = AsyncIntake(client, *self._keys, max_waiting=max_waiting)

    @classmethod
    def from_env(cls) -> Self:
        """As ``Producer.from_env``; ``aclose`` ends it. Reads the settings, and connects with the first ``send``.

        Without a URL it waits for the embedded server, up to 2 s, and holds up the event loop meanwhile.
        """
        from dispatcher.server.clients import connect_async

        target = target_from_env()
        client = connect_async(target.url, timeout_s=ANSWER_TIMEOUT_S)
        producer = cls(client, namespace=target.namespace, queue=target.queue, max_waiting=target.max_waiting)
        producer._target = target
        return producer

    async def send(
        self,
        category: str,
        text: str = "",
        *,
        id: str | None = None,  # noqa: A002 - the field's name on the wire
        on_duplicate: OnDuplicate = "ignore",
        **fields: Unpack[Fields],
    ) -> str:
        """As ``Producer.send``."""
        check_on_duplicate(on_duplicate)
        event = Event.from_payload({"category": category, "text": text, "id": id, **fields}, in_python=True)
        event_id = new_event_id() if event.id is None else event.id
        job = self._intake.calls.job(job_id_for(event_id), event, is_generated=event.id is None)
        (result,) = await self._enqueue([job], [event])
        return sent_one(event_id, result, on_duplicate, self._intake.calls.max_waiting)

    async def resolve(
        self, category: str, dedup_key: str, text: str | None = None, **fields: Unpack[ResolvedFields]
    ) -> str:
        """As ``Producer.resolve``."""
        return await self.send(
            category, resolved_text(dedup_key, text), dedup_key=dedup_key, status="resolved", **fields
        )

    async def send_many(
        self, events: Iterable[Source] | AsyncIterable[Source], *, on_duplicate: OnDuplicate = "ignore"
    ) -> list[str]:
        """As ``Producer.send_many``, also of events that come asynchronously."""
        check_on_duplicate(on_duplicate)
        tally = SendResult()
        try:
            async with aclosing(async_chunked(self._intake.calls, events)) as chunks:
                async for chunk in chunks:
                    tally.note(chunk, await self._enqueue(chunk.jobs, chunk.sources))
                    chunk.clear()
        except SendStopped as error:
            tally.stopped(error)
            raise
        return tally.finished(on_duplicate)

    async def explain(self, event_id: str) -> Explanation:
        """As ``Producer.explain``."""
        from dispatcher.server.async_connection import AsyncScript
        from dispatcher.server.connection import translate_refusals
        from dispatcher.settings.content import policy_if_readable
        from dispatcher.store.explanations import ExplainCalls, ids_of, the_one
        from dispatcher.store.forecast import SCRIPT

        async def ask(script: str, keys: list[str], call: dict[str, Any]) -> Any:  # noqa: ANN401 - what Lua returns
            return await AsyncScript(self._client, script)(keys, [encode(call)])

        calls = ExplainCalls(*self._keys)
        try:
            async with Within(ANSWER_TIMEOUT_S):
                with translate_refusals(self._client):
                    findings = calls.read(
                        await ask("explain", *calls.call(ids_of(event_id), payloads=True, limits=True))
                    )
                    policy = policy_if_readable(findings.limits)
                    if (forecast := findings.forecast(self._keys[0], policy)) is not None:
                        rooms = forecast.read(await ask(SCRIPT, forecast.keys, forecast.call))
                        findings = findings.with_rooms(rooms)
        except (GateUnavailable, TimeoutError) as error:
            raise QueueUnavailable(str(error) or _TOO_SLOW) from error
        return the_one(findings, event_id)

    async def aclose(self) -> None:
        """As ``Producer.close``."""
        if self._target is not None:
            try:
                await self._client.aclose()
            finally:
                if self._target.embedded is not None:
                    await _left(self._target.embedded)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _enqueue(self, jobs: list[Job], sources: list[Source]) -> list[Enqueued]:
        try:
            async with Within(ANSWER_TIMEOUT_S):
                return await self._intake.enqueue_jobs(jobs)
        except (GateUnavailable, TimeoutError) as error:
            raise unavailable(str(error) or _TOO_SLOW, sources) from error


async def _left(server: EmbeddedServer) -> None:
    """Leave it, in a thread where one can begin: the end of a server takes its time."""
    try:
        await asyncio.to_thread(server.close)
    except RuntimeError:  # no room for a thread, or the loop is ending and begins none any more
        server.close()


async def async_chunked(
    calls: EnqueueCalls, events: Iterable[Source] | AsyncIterable[Source]
) -> AsyncGenerator[Chunk, None]:
    """As ``chunked``, also of what comes asynchronously."""
    if not isinstance(events, AsyncIterable):
        for chunk in chunked(calls, events):
            yield chunk
        return
    chunk = Chunk(calls)
    try:
        async for source in events:
            if chunk.add(source):
                full, chunk = chunk, chunk.following()
                yield full
    except Exception:
        if chunk.jobs and not chunk.has_refused:
            yield chunk
        raise
    if chunk.jobs:
        yield chunk
