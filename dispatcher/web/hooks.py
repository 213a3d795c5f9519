"""Hooks: requests of other services, each verified by its own secret, become events as the limits file says."""

from __future__ import annotations

import hmac
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b, sha256
from http import HTTPStatus
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dispatcher.app.operating import Desk
from dispatcher.core.event import MAX_ID
from dispatcher.core.hooks import Hook, Verify
from dispatcher.core.policy import TemplateFailed
from dispatcher.core.strict_json import NotStrict, read_json
from dispatcher.errors import InvalidEvent
from dispatcher.logs.event_log import EventLog
from dispatcher.server.within import Within
from dispatcher.settings.limits_text import without_waiting
from dispatcher.settings.templating import JinjaTemplate, PartMissing, compile_mapping
from dispatcher.web.auth import Caller, secret_in
from dispatcher.web.bounds import ANSWER_S, Endpoint
from dispatcher.web.ingest import Ingest, kind_of
from dispatcher.web.problems import Problem, unavailable
from dispatcher.web.threads import Threads

FRESH_S: Final = 1.0
"""How long the hooks of the limits in force are taken to be these."""

OLDEST_S: Final = 300
"""How old a signed instant may be, and how far ahead."""

MOST_SECRETS: Final = 64 * 1024

_HEADERS: Final[Mapping[Verify, str]] = {
    Verify.GITHUB: "X-Hub-Signature-256",
    Verify.SENTRY: "Sentry-Hook-Signature",
    Verify.GRAFANA: "X-Grafana-Alerting-Signature",
    Verify.HMAC: "X-Signature",
    Verify.TOKEN: "Authorization",
}
_INSTANT: Final = re.compile(r"[0-9]{1,12}")
_PAYLOAD: Final = b"payload="
_FALSE: Final = frozenset({"", "False", "false", "None", "none", "0", "0.0", "[]", "{}"})
"""What ``when`` becomes where it is not true; anything else is true."""


@dataclass(frozen=True, slots=True)
class Mapper:
    """A hook with its templates ready."""

    hook: Hook
    when: JinjaTemplate | None
    fields: Mapping[str, JinjaTemplate]
    labels: Mapping[str, JinjaTemplate]

    @classmethod
    def of(cls, hook: Hook) -> Mapper:
        """The hook's."""
        said = {name: getattr(hook, name) for name in ("category", "text", "id", "channel", "priority")}
        return cls(
            hook,
            None if hook.when is None else compile_mapping(hook.when),
            {name: compile_mapping(source) for name, source in said.items() if source is not None},
            {name: compile_mapping(source) for name, source in hook.labels.items()},
        )

    def payload(self, variables: Mapping[str, object]) -> dict[str, Any] | None:
        """The event of a request, as an object; None of one that ``when`` leaves out. Raises ``InvalidEvent``."""
        if self.when is not None and not _is_true(self.when, variables):
            return None
        payload: dict[str, Any] = {name: _made(name, template, variables) for name, template in self.fields.items()}
        payload = {name: text for name, text in payload.items() if text or name in {"category", "text"}}
        if len(payload.get("id", "")) > MAX_ID:
            payload["id"] = blake2b(payload["id"].encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        labels = {name: _made(f"labels/{name}", template, variables) for name, template in self.labels.items()}
        return {**payload, "labels": {name: text for name, text in labels.items() if text}}


class Hooks:
    """The route of hooks."""

    def __init__(self, ingest: Ingest, desk: Desk, threads: Threads, log: EventLog) -> None:
        self._ingest = ingest
        self._desk = desk
        self._threads = threads
        self._log = log
        self._known: dict[str, Mapper] = {}
        self._of: Mapping[str, Hook] = {}
        self._read_s = -FRESH_S

    def knows(self, endpoint: Endpoint) -> Endpoint:
        """The way to an endpoint for hooks that there are; others are answered before their body is read."""

        async def way(request: Request) -> Response:
            name = request.path_params["name"]
            try:
                async with Within(ANSWER_S):
                    request.state.mapper = await self._threads.run(lambda: self._mapper(name))
            except TimeoutError:
                raise unavailable("there was no answer in time") from None
            request.state.caller = Caller(f"hook {name}", frozenset())
            return await endpoint(request)

        return way

    async def post(self, request: Request, body: bytes) -> Response:
        """``POST /v1/hooks/{name}``; what ``when`` leaves out is 202 too, and counted as ``ignored``."""
        name, mapper = request.path_params["name"], request.state.mapper
        payload = await self._threads.run(lambda: self._payload(name, mapper, request, body))
        if payload is None:
            return JSONResponse({"ids": [], "enqueued": 0, "duplicate": 0, "ignored": 1}, HTTPStatus.ACCEPTED)
        events = await self._ingest.valid([payload], request)
        done = (await self._ingest.enqueue(events, request)).done()
        return JSONResponse({**done, "ignored": 0}, HTTPStatus.ACCEPTED)

    def _payload(
        self, name: str, mapper: Mapper, request: Request, body: bytes
    ) -> dict[str, Any] | InvalidEvent | None:
        """What becomes of the request: an event as an object, why it is none, or None for nothing."""
        verify(mapper.hook, request.headers, body, self._secrets(name, mapper.hook))
        try:
            variables = {
                "body": read_json(_content(request, body)),
                "headers": {key.lower(): text for key, text in request.headers.items()},
            }
        except NotStrict as error:
            raise Problem(HTTPStatus.BAD_REQUEST, error.of_body) from error
        try:
            return mapper.payload(variables)
        except InvalidEvent as error:
            return error

    def _mapper(self, name: str) -> Mapper:
        if time.monotonic() - self._read_s >= FRESH_S:
            self._desk.check()
            self._of, self._read_s = self._desk.limits().policy.hooks, time.monotonic()
        hook = self._of.get(name)
        if hook is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no hook {name!r} in the limits in force")
        known = self._known.get(name)
        if known is None or known.hook != hook:
            known = self._known[name] = Mapper.of(hook)
        return known

    def _secrets(self, name: str, hook: Hook) -> list[bytes]:
        try:
            with open(Path(hook.secret_file).expanduser(), "rb", opener=without_waiting) as file:
                is_regular = S_ISREG(os.fstat(file.fileno()).st_mode)
                content = file.read(MOST_SECRETS + 1) if is_regular else b""
            secrets = [line.strip() for line in content.splitlines() if line.strip()]
            fault = None if secrets else "is empty" if is_regular else "is not a regular file"
            if len(content) > MOST_SECRETS:
                fault = f"is larger than {MOST_SECRETS} bytes"
        except (OSError, RuntimeError) as error:  # the last where ~ is a home folder that is not known
            secrets, fault = [], f"cannot be read: {error.strerror if isinstance(error, OSError) else error}"
        if fault is not None:
            self._log.say("hook.refused", hook=name, detail=f"{hook.secret_file} {fault}")
            raise unavailable(f"the secret of the hook {name!r} cannot be read")
        return secrets


def _content(request: Request, body: bytes) -> bytes:
    """The JSON of a request: its body, or the field ``payload`` of a form, as GitHub sends by default."""
    if kind_of(request) != "application/x-www-form-urlencoded" or not body.startswith(_PAYLOAD):
        return body
    return unquote_to_bytes(body.removeprefix(_PAYLOAD).partition(b"&")[0].replace(b"+", b" "))


def verify(hook: Hook, headers: Mapping[str, str], body: bytes, secrets: list[bytes]) -> None:
    """Return where the request comes from who knows one of the secrets; else raise ``Problem``.

    The raw body is what is signed, behind the instant and a colon where that is signed too. Takes the same time for
    any wrong signature of a length.
    """
    header = hook.header or _HEADERS[hook.verify]
    given = headers.get(header, "")
    if hook.verify is Verify.TOKEN:
        token = secret_in(given)
        token = given.strip(" \t").encode("latin-1") if token is None else token
        found = [hmac.compare_digest(token, secret) for secret in secrets]
    else:
        signed = body
        if hook.timestamp_header is not None:
            instant = headers.get(hook.timestamp_header, "")
            if not _INSTANT.fullmatch(instant) or abs(time.time() - int(instant)) > OLDEST_S:
                raise _unauthorized(f"{hook.timestamp_header} is no instant of the last {OLDEST_S} s")
            signed = instant.encode() + b":" + body
        signature = given.removeprefix("sha256=").strip().lower().encode()
        found = [
            hmac.compare_digest(hmac.new(secret, signed, sha256).hexdigest().encode(), signature) for secret in secrets
        ]
    if not any(found):
        raise _unauthorized(f"{header} does not prove that the sender knows the secret of this hook")


def _unauthorized(detail: str) -> Problem:
    return Problem(HTTPStatus.UNAUTHORIZED, detail, headers={"WWW-Authenticate": 'Bearer realm="dispatcher"'})


def _is_true(when: JinjaTemplate, variables: Mapping[str, object]) -> bool:
    """What asks for a field that the request lacks is not true: services post of other kinds to the same address."""
    try:
        return _made("when", when, variables) not in _FALSE
    except InvalidEvent as error:
        if isinstance(error.__cause__, PartMissing):
            return False
        raise


def _made(name: str, template: JinjaTemplate, variables: Mapping[str, object]) -> str:
    try:
        return template.render(variables)
    except TemplateFailed as error:
        raise InvalidEvent(f"the hook's template of {name} fails: {error}", pointer=f"/{name}") from error
