"""What is to be said of the way to post: credential, scopes, clocks, address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, assert_never
from urllib.parse import urlsplit

from dispatcher.app.checks import ask_slack
from dispatcher.app.documents.instants import span
from dispatcher.cli.doctor.finding import Finding, error, in_two, ok, warning
from dispatcher.cli.stand_in import USUAL_PORT
from dispatcher.core.policy import Policy
from dispatcher.core.posts import Ambiguous, Paused, RateLimitedBySlack, Rejected, Retryable
from dispatcher.core.units import US, is_loopback
from dispatcher.errors import ConfigError
from dispatcher.settings.environment import Settings
from dispatcher.slack.replies import Unchecked, Workspace
from dispatcher.slack.taxonomy import row_for

_NEEDED: Final = "chat:write"
_RECOMMENDED: Final = "chat:write.public"
_FOR_IDENTITIES: Final = "chat:write.customize"
_FOR_RECONCILIATION: Final = ("channels:history", "groups:history", "channels:read", "groups:read")
_FOR_PERSONS: Final = "im:history"
_ADD: Final = "under OAuth & Permissions of the app, and install the app again"


MAX_APART_S: Final = 5.0
"""Clocks further apart than this are told: a post with an unknown delivery status is looked for by both."""


def slack_findings(
    settings: Settings, policy: Policy | None, clock: Callable[[], float], ahead_s: float | None
) -> Iterator[Finding]:
    """Everything about posting; asks Slack with auth.test, which posts nothing. No policy: a faulty limits file.

    ``ahead_s`` is how far ``clock``, this machine's, is ahead of the Redis server's; None where nobody knows.
    """
    asked_s = clock()
    try:
        answer = ask_slack(settings)
    except ConfigError as refusal:
        yield error("slack", *in_two(str(refusal), ": ", "correct it"))
        return
    match answer:
        case None:
            yield ok("slack", "not used: messages are printed (DISPATCHER_SINK=console)")
            return
        case Unchecked():
            said = "a webhook cannot be checked without posting; it posts to its own channel, whatever an event names"
            yield warning("slack", said, "send an event, and look whether it arrives")
            return
        case Workspace(team, user, scopes, date_us):
            answered_s = clock()
            yield ok("slack", f"the token is accepted: {user} in workspace {team}")
            yield from _scopes(scopes)
            if scopes and policy is not None and policy.has_identities and _FOR_IDENTITIES not in scopes:
                said = (
                    f"{_FOR_IDENTITIES} is missing: username, icon_emoji and icon_url of the limits file have no effect"
                )
                yield warning("scopes", said, f"add {_FOR_IDENTITIES} {_ADD}")
            if date_us is not None and ahead_s is not None:
                slacks_s = date_us / US + ahead_s
                yield _clocks(min(0.0, answered_s - slacks_s) or max(0.0, asked_s - slacks_s))
        case RateLimitedBySlack(retry_after_us, code):
            said = f"{code}: Slack asks to come back in {span(retry_after_us / US)}, the token was not checked"
            yield warning("slack", said, "look again then")
        case Retryable(code, detail) | Rejected(code, detail) | Ambiguous(code, detail) | Paused(code, detail):
            yield _refusal(code, detail, settings.slack_base_url)
        case _:
            assert_never(answer)
    if settings.slack_base_url is not None:
        yield _address(settings.slack_base_url)


def _scopes(scopes: tuple[str, ...]) -> Iterator[Finding]:
    if not scopes:
        yield warning("scopes", "Slack's answer names none", f"see to it that the app has {_NEEDED}")
        return
    if _NEEDED not in scopes:
        yield error("scopes", f"{_NEEDED} is missing: nothing can be posted", f"add {_NEEDED} {_ADD}")
    elif _RECOMMENDED not in scopes:
        said = f"{_NEEDED}, but not {_RECOMMENDED}: the app can post only where it was invited"
        yield warning("scopes", said, f"invite the app to each channel, or add {_RECOMMENDED} {_ADD}")
    else:
        yield ok("scopes", f"{_NEEDED} and {_RECOMMENDED}")
    absent = [scope for scope in _FOR_RECONCILIATION if scope not in scopes]
    if absent:
        said = f"{', '.join(absent)} absent: an unconfirmed post may not be found, and is then handled by on_ambiguous"
        yield warning("reconciliation", said, f"add them {_ADD}")
    else:
        said = "posts with an unknown delivery status are searched for in channels that the app is a member of"
        persons = "" if _FOR_PERSONS in scopes else f"; messages to one person also need {_FOR_PERSONS}"
        yield ok("reconciliation", f"the token may read histories: {said}{persons}")


def _clocks(apart_s: float) -> Finding:
    """``apart_s``: how far the Redis server's clock is ahead of Slack's at least, whenever Slack read its own."""
    if abs(apart_s) <= MAX_APART_S:
        return ok("slack clock", "the Redis server and Slack agree on the time")
    which = "ahead of" if apart_s > 0 else "behind"
    return warning(
        "slack clock",
        f"the Redis server's clock is {span(abs(apart_s))} {which} Slack's",
        "set the server's clock right (NTP): while it is about a minute ahead or more, an unconfirmed post that is "
        "not found is not made again",
    )


def _refusal(code: str, detail: str, base_url: str | None) -> Finding:
    row = row_for(code)
    remedy = row.remedy or "try again; if it stays, look at the network, the proxy and Slack's status page"
    if code == "connection_refused" and base_url is not None and is_loopback(urlsplit(base_url).hostname or ""):
        said = f"nobody listens at {base_url}, the address of a stand-in on this machine"
        remedy = f"start it: dispatcher slack-stand-in{_port_option(base_url)}"
        return error("slack", f"{code}: {said}", remedy)
    return error("slack", f"{code}: {row.told}{detail.removeprefix(row.words)}", remedy)


def _port_option(base_url: str) -> str:
    port = urlsplit(base_url).port
    return "" if port in {None, USUAL_PORT} else f" --port {port}"


def _address(base_url: str) -> Finding:
    if is_loopback(urlsplit(base_url).hostname or ""):
        said = f"posts go to {base_url}, a stand-in or proxy on this machine, and not to Slack itself"
        return warning("address", said, "unset DISPATCHER_SLACK_BASE_URL to post to Slack")
    return ok("address", f"posts go to {base_url} in place of Slack's own address")
