"""Who may do what: tokens and their scopes, and requests that a foreign web page has made."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from dispatcher.core.rendering import one_line
from dispatcher.core.units import is_loopback
from dispatcher.errors import ConfigError
from dispatcher.web.bounds import Endpoint
from dispatcher.web.problems import Problem

MOST_FILE: Final = 1024 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_SAFE: Final = frozenset({"GET", "HEAD"})
_FIELDS: Final = 3
_MOST_HOST: Final = 100
"""Characters of a host that is refused in the answer."""


class Scope(StrEnum):
    """What a token allows; none includes another."""

    INGEST = "ingest"
    READ = "read"
    OPERATE = "operate"
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the name of the token."""

    name: str
    scopes: frozenset[Scope]


LOCAL: Final = Caller("local", frozenset(Scope) - {Scope.OPERATE})
"""Who asks where there are no tokens: a process of this machine."""


SENDER: Final = Caller("hook", frozenset())
"""Who asks with a secret of its own, before it is known which one."""


class Tokens:
    """The tokens of a file; their secrets are kept as digests alone."""

    def __init__(self, callers: Iterable[tuple[bytes, Caller]]) -> None:
        self._callers = tuple(callers)

    def find(self, secret: bytes) -> Caller | None:
        """Whose secret it is; takes the same time for each."""
        digest, found = sha256(secret).digest(), None
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                found = caller
        return found


def read_tokens(path: Path) -> Tokens:
    """The tokens of a file: a line ``NAME SCOPES SECRET`` for each. Blank lines, and those that begin with #, are none.

    Raises ``ConfigError`` with every fault; no message holds a secret.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_FILE + 1)
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8, expected a line NAME SCOPES SECRET for each token") from None
    except OSError as error:
        remedy = "; 'dispatcher serve --create-tokens' writes one" if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(
            f"the tokens file '{path}' (--tokens or DISPATCHER_SERVE_TOKENS_FILE) cannot be read: "
            f"{error.strerror}{remedy}"
        ) from None
    if len(content) > MOST_FILE:
        raise ConfigError(f"{path} is larger than {MOST_FILE} bytes, expected a line NAME SCOPES SECRET for each token")
    found: dict[bytes, Caller] = {}
    faults = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            _add(found, *_token(line))
        except ValueError as error:
            faults.append(f"{path}, line {number}: {error}")
    if not found and not faults:
        faults.append(f"{path} names no token, expected a line NAME SCOPES SECRET for each")
    if faults:
        raise ConfigError(*faults)
    return Tokens(found.items())


def create_tokens(path: Path) -> bool:
    """Write a file with one token, ``operator``, that may do everything, where there is none; whether it was written.

    Only its owner may read it. Of several that do this at once, one writes. Raises ``ConfigError``.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        if path.exists():
            return False
        try:
            draft.touch(0o600, exist_ok=False)
            draft.write_text(f"operator {','.join(Scope)} {secrets.token_urlsafe(32)}\n", "ascii")
            path.hardlink_to(draft)
        finally:
            draft.unlink(missing_ok=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    return True


def _add(found: dict[bytes, Caller], secret: bytes, caller: Caller) -> None:
    if secret in found or caller.name in {other.name for other in found.values()}:
        raise ValueError("the name or the secret of an earlier line, expected a different one for each token")
    found[secret] = caller


def _token(line: str) -> tuple[bytes, Caller]:
    fields = line.split()
    if len(fields) != _FIELDS:
        raise ValueError(f"{len(fields)} words, expected three: NAME SCOPES SECRET")
    name, scopes, secret = fields
    if not _NAME.fullmatch(name):
        raise ValueError("a name of other characters than A-Z a-z 0-9 _ . : -, expected 1 to 64 of these")
    if name == SENDER.name:
        raise ValueError(f"the name {name}, which stands for the hooks, expected a different one")
    known = set(Scope)
    if not set(scopes.split(",")) <= known:
        raise ValueError(f"a scope that is not known, expected some of {', '.join(Scope)}, separated by commas")
    return sha256(secret.encode()).digest(), Caller(name, frozenset(map(Scope, scopes.split(","))))


class WholeAddresses:
    """An application that is also asked for ``http://HOST/PATH``, as of a proxy: HOST then counts, and no header Host.

    RFC 9112, 3.2.2.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        scheme, mark, rest = scope["raw_path"].partition(b"://")
        if mark and scheme.lower() in {b"http", b"https"}:
            host, slash, path = rest.partition(b"/")
            scope["raw_path"] = (slash or b"/") + path
            scope["path"] = unquote(scope["raw_path"].decode("ascii"))
            scope["headers"] = [(b"host", host), *(each for each in scope["headers"] if each[0] != b"host")]
        await self._app(scope, receive, send)


class Guard:
    """Lets a request pass to its handler; ``reread`` reads the tokens file again."""

    def __init__(self, tokens_file: Path | None, trusted_hosts: Sequence[str] = ()) -> None:
        """Raises ``ConfigError`` as ``read_tokens`` does."""
        self._file = tokens_file
        self._trusted = frozenset(trusted_hosts)
        self._tokens = None if tokens_file is None else read_tokens(tokens_file)

    @property
    def has_tokens(self) -> bool:
        """Whether a request needs one."""
        return self._tokens is not None

    def reread(self) -> None:
        """Follow what the file says now; raises ``ConfigError``, and keeps the tokens that it has."""
        if self._file is not None:
            self._tokens = read_tokens(self._file)

    def opens(self, scope: Scope) -> Callable[[Endpoint], Endpoint]:
        """The way to an endpoint for those whose token has this scope. The endpoint finds who asks with ``caller_of``.

        Without the scope it answers 403, without a token 401.
        """

        def guarded(endpoint: Endpoint) -> Endpoint:
            async def way(request: Request) -> Response:
                self.check_origin(request)
                request.state.caller = self._allowed(request, scope)
                return await endpoint(request)

            return way

        return guarded

    def opens_by_secret(self, endpoint: Endpoint) -> Endpoint:
        """The way to an endpoint that looks for a secret itself, and needs no token."""

        async def way(request: Request) -> Response:
            self.check_origin(request)
            request.state.caller = SENDER
            return await endpoint(request)

        return way

    def check_origin(self, request: Request) -> None:
        """Raise ``Problem`` where a web page of somebody else may have made the request."""
        hosts = request.headers.getlist("host")
        if self._tokens is None and not (len(hosts) == 1 and self._is_trusted(hosts[0])):
            named = f"'{one_line(hosts[0], _MOST_HOST)}'" if len(hosts) == 1 else "none, or several"
            raise Problem(
                HTTPStatus.FORBIDDEN,
                f"this host is not known: {named}; "
                "without tokens only loopback, and DISPATCHER_SERVE_TRUSTED_HOSTS, are",
            )
        if request.method not in _SAFE and not _is_own(request, hosts):
            raise Problem(HTTPStatus.FORBIDDEN, "a page of another site asks for a change")

    def _is_trusted(self, authority: str) -> bool:
        host = _host_of(authority)
        return host is not None and (is_loopback(host) or host in self._trusted or authority.lower() in self._trusted)

    def _allowed(self, request: Request, scope: Scope) -> Caller:
        if self._tokens is None:
            caller, remedy = LOCAL, "; it needs a token: see DISPATCHER_SERVE_TOKENS_FILE"
        else:
            presented = map(secret_in, request.headers.getlist("authorization"))
            found = [self._tokens.find(secret) for secret in presented if secret is not None]
            if len(found) != 1 or found[0] is None:
                headers = {"WWW-Authenticate": 'Bearer realm="dispatcher", Basic realm="dispatcher", charset="UTF-8"'}
                detail = "no valid token, expected Authorization: Bearer SECRET, or Basic with it as the password"
                raise Problem(HTTPStatus.UNAUTHORIZED, detail, headers=headers)
            caller, remedy = found[0], ""
        if scope not in caller.scopes:
            raise Problem(HTTPStatus.FORBIDDEN, f"{caller.name} does not have the scope {scope}{remedy}")
        return caller


def caller_of(request: Request) -> Caller:
    """Who asks, as the guard has found."""
    caller: Caller = request.state.caller
    return caller


def secret_in(value: str) -> bytes | None:
    """The secret in a header: behind Bearer, or the password of Basic; None where it has neither word."""
    kind, _, rest = value.partition(" ")
    text = rest.strip(" \t").encode("latin-1")  # its characters are bytes: other blanks may be parts of one of UTF-8
    if kind.lower() == "bearer":
        return text
    if kind.lower() == "basic":
        try:
            return base64.b64decode(text, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return None


def _is_own(request: Request, hosts: Sequence[str]) -> bool:
    """Whether no browser, or a page of this very host, has made the request.

    A browser says where a request comes from: in Sec-Fetch-Site, over plain HTTP in Origin alone.
    """
    sites = request.headers.getlist("sec-fetch-site")
    if sites:
        return set(sites) == {"same-origin"}
    origins = [origin.partition("://")[2].lower() for origin in request.headers.getlist("origin")]
    return set(origins) <= set(map(str.lower, hosts))


def _host_of(authority: str) -> str | None:
    try:
        return urlsplit(f"//{authority}").hostname
    except ValueError:
        return None
