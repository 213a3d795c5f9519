"""What messages say of a value: cut to a readable length, with no secret in it, and what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from dispatcher.core.units import HIDDEN
from dispatcher.server.urls import SENTINEL

SHORTEST_SECRET: Final = 4
LONGEST: Final = 80
LONGEST_PATH: Final = 4096
# Compiled where they are needed: few messages show a value, and each start would pay for it.
_OPTION: Final = r"[?&;]([^=?&;#]*)="
_SECRET_OPTIONS: Final = ("pas", "cred", "secret", "token")
_SLACKS_OWN: Final = r"(?i)xox[a-z][.-]|xapp-"
_CREDENTIAL: Final = rf"{_SLACKS_OWN}|hooks\.slack|services/T\w*/B\w*/"
_WEBHOOK: Final = r"([a-z]+://(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)(?::[0-9]{1,5})?)((?:[/?#\\][^@]*)?)"


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """``; did you mean NAME?`` where a known name is near, else nothing; ``-`` and ``_`` count as one."""
    by_spelling = {name.replace("-", "_"): name for name in known}
    spelling = given.lower().replace("-", "_") if isinstance(given, str) else ""
    from difflib import get_close_matches

    near = get_close_matches(spelling, by_spelling, n=1)
    return f"; did you mean {by_spelling[near[0]]}?" if near else ""


def redacted(value: object, longest: int = LONGEST) -> str:
    """A value as it stands in a message: strings quoted, cut at ``longest``, look-alikes of a secret hidden.

    A token or a webhook pasted into the wrong place must not reach a log by way of the complaint about it.
    """
    match value:
        case str():
            return _redacted_text(value, longest)
        case None | bool():
            return "null" if value is None else str(value).lower()
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case _:
            return _cut(str(value), longest)


def looks_secret(text: str) -> bool:
    """Whether text has the form of a Slack token or of a webhook."""
    return re.search(_CREDENTIAL, text) is not None


def redacted_url(url: str) -> str:
    """A server's URL with the password hidden, whatever characters it holds; a user name stays readable.

    ``redis://app:p%40ss@db:6379/0`` becomes ``redis://app:***@db:6379/0``. All up to the last ``@`` counts as
    credentials, so an unencoded ``/``, ``?`` or ``#`` in a password does not break out. Where a URL can be
    read in two ways, more is hidden rather than less.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    tail = ""
    if cut := _start_of_secret_option(rest):
        rest, tail = rest[:cut], rest[cut:]
        if "@" in tail:
            return f"{scheme}{separator}{HIDDEN}"
        tail = HIDDEN
    credentials, at, place = rest.rpartition("@")
    if at:
        user, colon, _ = credentials.partition(":")
        rest = f"{user}:{HIDDEN}@{place}" if colon else f"{HIDDEN}@{place}"
    return f"{scheme}{separator}{rest}{tail}"


def redacted_webhook(url: str) -> str:
    """A webhook's URL without its path, which is the secret: ``https://hooks.slack.com/***``.

    A host is hidden too if it may be something else, such as a password.
    """
    match = re.fullmatch(_WEBHOOK, url)
    if match is None or re.search(_SLACKS_OWN, match[1]):
        return HIDDEN
    return f"{match[1]}/{HIDDEN}" if match[2].strip("/") else match[1] + match[2]


def secret_spellings(*, redis_url: str = "", token: str = "", webhook: str = "") -> frozenset[str]:
    """Each secret in every spelling it may turn up in: as given, URL-decoded and URL-encoded.

    Not those so short that they stand in ordinary words: hiding them would spoil every message.
    """
    parts = urlsplit(_with_one_host(redis_url))
    options = [text for name, text in parse_qsl(parts.query) if _is_secret_option(name)]
    passwords = [parts.password or "", *options]
    path = webhook.partition("://")[2].partition("/")[2]
    plain = {unquote(text) for text in (*passwords, token, webhook, path)}
    spellings = {*passwords, token, webhook, path, *plain, *(quote(text, safe="") for text in plain)}
    return frozenset(text for text in spellings if len(text) >= SHORTEST_SECRET)


def _with_one_host(url: str) -> str:
    """The URL as ``urlsplit`` can read it, which knows no list of hosts; where they stand is no secret."""
    if not url.startswith(SENTINEL):
        return url
    head, mark, query = url.partition("?")
    credentials, at, _ = head.rpartition("@")
    return f"{credentials}{at}host{mark}{query}"


def _redacted_text(text: str, longest: int) -> str:
    if looks_secret(text):
        return f"{HIDDEN} (looks like a secret)"
    return _cut(repr(redacted_url(text) if "://" in text else text), longest)


def _start_of_secret_option(rest: str) -> int:
    """Where the value of the first secret option in the query begins; 0 if there is none."""
    for option in re.finditer(_OPTION, rest):
        if _is_secret_option(unquote(option[1])):
            return option.end()
    return 0


def _is_secret_option(name: str) -> bool:
    return any(part in name.lower() for part in _SECRET_OPTIONS)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
