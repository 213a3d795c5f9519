"""``dispatcher send``: one event from the arguments, or a stream of them from stdin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from dispatcher.cli.options import CHANNEL, SPAN_S, Parsed
from dispatcher.cli.terminal import Terminal
from dispatcher.core.typed_instants import read_instant
from dispatcher.core.units import US, Lane

_STDIN: Final = "-"


def _label(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise ValueError(f"{text!r}, expected KEY=VALUE, for example host=db1")
    return key, value


def _instant(text: str) -> float:
    """Seconds since 1970. Without a zone, people mean the one of their machine."""
    try:
        return read_instant(text) / US
    except ValueError:
        raise ValueError(f"{text!r}, expected an instant such as 2026-11-24T08:00") from None


_INSTANT: Final = Parsed("INSTANT", _instant)


@click.command()
@click.argument("category", required=False)
@click.argument("text", required=False)
@click.option("--stdin", "from_stdin", is_flag=True, help="Read events from stdin, one JSON object on each line.")
@click.option("--channel", type=CHANNEL, help="Post there instead of to the category's channel: a name, or an id.")
@click.option("--id", help="A second event with the same id is a duplicate. Without it an id is generated.")
@click.option(
    "--priority",
    type=click.Choice([lane.value for lane in Lane]),
    help="Workers take high before normal, and normal before low.",
)
@click.option("--label", "labels", type=Parsed("K=V", _label), multiple=True, help="May be repeated.")
@click.option("--mrkdwn", is_flag=True, help="TEXT is Slack's markup, and sent as it is.")
@click.option("--thread", help="A key of your own: go under the first message that named it.")
@click.option("--thread-ts", help="Answer in the thread of this message.")
@click.option("--max-age", type=SPAN_S, help="Give up after waiting so long: 30m, or seconds.")
@click.option("--not-before", type=_INSTANT, help="Post it then or later: 2026-11-24T08:00, with a zone or in yours.")
@click.option("--delay", type=SPAN_S, help="Post it after so long, or later: 30m, or seconds.")
@click.option("--dedup-key", help="What the event is about: repeats and the recovery name the same.")
@click.option("--resolved", is_flag=True, help="What the --dedup-key names is over.")
@click.option("--json", "as_json", is_flag=True, help="Print counts as one JSON object, instead of ids.")
@click.pass_obj
def send(
    terminal: Terminal,
    /,
    from_stdin: bool,  # noqa: FBT001 - click passes by name
    as_json: bool,  # noqa: FBT001 - as above
    resolved: bool,  # noqa: FBT001 - as above
    labels: Sequence[tuple[str, str]],
    **fields: Any,  # noqa: ANN401 - the options that are fields of an event
) -> int:
    """Put events on the queue, and print their ids.

    TEXT is read from stdin where it is "-", or left out while stdin is no terminal. With --stdin there is an event on
    each line of stdin, in JSON.

    A line that is no valid event is reported with its number, the others are sent, and the exit code is 1.
    """
    given = {name: value for name, value in fields.items() if value is not None and value is not False}
    if labels:
        given["labels"] = dict(labels)
    if resolved:
        given["status"] = "resolved"
    if from_stdin:
        if given:
            raise click.UsageError(
                "--stdin takes each event from its line: leave out CATEGORY, TEXT and their options."
            )
        from dispatcher.cli.send.line_by_line import send_line_by_line

        return send_line_by_line(terminal, as_json=as_json)
    if "category" not in given:
        raise click.UsageError("Missing argument 'CATEGORY'; with --stdin events are read from stdin.")
    if given.get("text", _STDIN) == _STDIN:
        given["text"] = _text_of_stdin(is_asked_for="text" in given)
    from dispatcher.cli.send.sending import send_one
    from dispatcher.core.event import Event, encode_event

    event = Event.from_payload(given)
    encode_event(event)
    return send_one(terminal, event, as_json=as_json)


def _text_of_stdin(*, is_asked_for: bool) -> str:
    """All of stdin, without the end of its last line."""
    import sys

    from dispatcher.core.event import MAX_EVENT_BYTES

    if not is_asked_for and sys.stdin.isatty():
        raise click.UsageError("Missing argument 'TEXT'; a dash reads it from stdin.")
    raw = sys.stdin.buffer.read(MAX_EVENT_BYTES + 1)
    if len(raw) > MAX_EVENT_BYTES:
        raise click.UsageError(f"stdin holds more than {MAX_EVENT_BYTES} bytes, expected the text of one event.")
    text = raw.decode("utf-8-sig", "replace").rstrip("\r\n")  # a log may hold any bytes, and its news must arrive
    if not text.strip():
        raise click.UsageError("Missing argument 'TEXT', and stdin is empty.")
    return text
