"""Tests of what an event looks like at Slack."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.event import Event
from dispatcher.core.policy import Style
from dispatcher.core.rendering import (
    CUT_MARK,
    MAX_TEXT,
    cut,
    escape,
    message_for,
    one_line,
    text_of,
    unescape,
    without_controls,
    without_mentions,
)

# What notifies somebody when Slack reads it in markup.
MENTION = re.compile(r"<(@|!(?!date\^))")
MENTIONS = ["<!channel>", "<!here>", "<!everyone>", "<!here|here>", "<!subteam^S012|@ops>", "<@U012>", "<@W012|ann>"]
texts = st.text(st.one_of(st.sampled_from("&<>;@!| amplt\n\r\t\x00\x1b"), st.characters(exclude_categories=["Cs"])))
markup = st.lists(st.one_of(texts, st.sampled_from(MENTIONS), st.sampled_from(["<", "<!", "<\x00@U1>"]))).map("".join)


def posted_text(**fields: object) -> str:
    return message_for(Event.from_payload({"category": "errors", **fields}), "e1", "#ops").text


@given(texts)
def test_unescape_undoes_escape(text: str) -> None:
    assert unescape(escape(text)) == text


@given(texts)
def test_an_escaped_text_holds_no_markup(text: str) -> None:
    escaped = escape(text)
    assert "<" not in escaped
    assert ">" not in escaped
    assert not re.search("&(?!amp;|lt;|gt;)", escaped)


@given(st.text("&<>a", min_size=1).map(lambda text: text * 80), st.integers(len(CUT_MARK), 300))
def test_a_cut_text_is_never_over_the_limit_and_never_ends_in_half_an_entity(text: str, limit: int) -> None:
    escaped = escape(text)
    shortened = cut(escaped, limit)
    assert len(shortened) <= limit
    assert not re.search("&(?!amp;|lt;|gt;)", shortened)
    if len(escaped) > limit:
        assert shortened.endswith(CUT_MARK)
        assert text.startswith(unescape(shortened.removesuffix(CUT_MARK)))
    else:
        assert shortened == escaped


def test_a_link_that_takes_most_of_the_room_is_cut() -> None:
    text = f"see <https://example.com/{'x' * MAX_TEXT}>"
    assert cut(text) == text[: MAX_TEXT - len(CUT_MARK)] + CUT_MARK


def test_a_link_at_the_cut_goes_as_a_whole() -> None:
    text = "x" * 3_850 + " <https://example.com/a/very/long/path/that/goes/on|the page>" + "y" * 100
    assert cut(text) == "x" * 3_850 + " " + CUT_MARK


@given(markup)
def test_no_mention_survives_in_markup(text: str) -> None:
    assert not MENTION.search(without_mentions(text))


@given(markup)
def test_a_neutralised_markup_reads_as_it_was_written(text: str) -> None:
    assert unescape(without_mentions(text)) == unescape(without_controls(text))


@pytest.mark.parametrize("mention", MENTIONS)
def test_a_mention_is_shown_without_notifying(mention: str) -> None:
    assert posted_text(text=f"look {mention} now", mrkdwn=True) == f"look &lt;{mention[1:]} now"


@pytest.mark.parametrize(
    "kept", ["*bold* `code`", "<https://example.com|page>", "<#C012>", "<!date^1^{date}|d>", "a & b"]
)
def test_other_markup_is_sent_as_it_is(kept: str) -> None:
    assert posted_text(text=kept, mrkdwn=True) == kept


def test_plain_text_is_escaped() -> None:
    assert posted_text(text="a < b && <!channel>") == "a &lt; b &amp;&amp; &lt;!channel&gt;"


@pytest.mark.parametrize("mrkdwn", [False, True], ids=["plain", "mrkdwn"])
def test_a_long_text_is_cut_after_escaping(mrkdwn: bool) -> None:  # noqa: FBT001 - a parameter of the test
    text = posted_text(text="&" * 5_000, mrkdwn=mrkdwn)
    assert MAX_TEXT - 5 <= len(text) <= MAX_TEXT
    assert text.endswith(CUT_MARK)


def test_control_characters_go_and_newlines_and_tabs_stay() -> None:
    assert posted_text(text="a\r\nb\tc\x00\x1b[31md\x9b\x7f") == "a\nb\tc[31md"


def test_a_control_character_hides_no_mention() -> None:
    assert posted_text(text="<\x00!channel> <\x1b@U1>", mrkdwn=True) == "&lt;!channel> &lt;@U1>"


def test_channel_id_and_thread_are_passed_on() -> None:
    message = message_for(Event("errors", "hi", thread_ts="1732100000.000100"), "id-1", "#ops")
    assert (message.event_id, message.channel, message.thread_ts) == ("id-1", "#ops", "1732100000.000100")


def test_the_message_that_an_event_names_wins_over_that_of_its_thread() -> None:
    named = Event("errors", "hi", thread_ts="1732100000.000100", thread="k")
    assert message_for(named, "e1", "#ops", thread_ts="1700000000.000001").thread_ts == "1732100000.000100"
    assert message_for(Event("errors", "hi"), "e1", "#ops", thread_ts="1.1").thread_ts == "1.1"


def test_mentions_in_the_markup_of_blocks_are_neutralised_at_any_depth() -> None:
    section = {
        "type": "section",
        "text": {"type": "mrkdwn", "text": "<!channel> *down*"},
        "fields": [{"type": "mrkdwn", "text": "<@U1>"}, {"type": "plain_text", "text": "<!here>"}],
        "accessory": {"type": "button", "confirm": {"text": {"type": "mrkdwn", "text": "<!subteam^S1>"}}},
    }
    [block] = message_for(Event("errors", "down", blocks=(section,)), "e1", "#ops").blocks
    assert block == {
        "type": "section",
        "text": {"type": "mrkdwn", "text": "&lt;!channel> *down*"},
        "fields": [{"type": "mrkdwn", "text": "&lt;@U1>"}, {"type": "plain_text", "text": "<!here>"}],
        "accessory": {"type": "button", "confirm": {"text": {"type": "mrkdwn", "text": "&lt;!subteam^S1>"}}},
    }
    assert section["text"] == {"type": "mrkdwn", "text": "<!channel> *down*"}, "the event is left as it was"


@pytest.mark.parametrize("kind", ["mrkdwn", "markdown"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@here look", "@\u2060here look"),
        ("_@here_ é@here", "_@\u2060here_ é@\u2060here"),
        ("(@channel) and @Everyone", "(@\u2060channel) and @\u2060Everyone"),
        ("<@here>, <!here>", "&lt;@\u2060here>, &lt;!here>"),
        ("<https://ops.example/@here|@here>", "<https://ops.example/@here|@\u2060here>"),
        ("https://ops.example/@channel/1 @channel", "https://ops.example/@channel/1 @\u2060channel"),
        ("ops@here.example, @hereabouts, @anna", "ops@here.example, @hereabouts, @anna"),
    ],
)
def test_bare_names_of_everybody_in_the_markup_of_blocks_are_no_mentions(kind: str, text: str, expected: str) -> None:
    event = Event("errors", "", blocks=({"type": "section", "text": {"type": kind, "text": text}},))
    assert message_for(event, "e1", "#ops").blocks == ({"type": "section", "text": {"type": kind, "text": expected}},)
    allowed = message_for(event, "e1", "#ops", ALLOWED).blocks[0]
    assert allowed == {"type": "section", "text": {"type": kind, "text": text}}
    assert text_of(event) == unescape(text)


def test_mentions_as_elements_of_rich_text_become_text() -> None:
    elements = [
        {"type": "broadcast", "range": "here"},
        {"type": "user", "user_id": "U1"},
        {"type": "usergroup", "usergroup_id": "S1"},
        {"type": "text", "text": "down", "style": {"bold": True}},
    ]
    block = {"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": elements}]}
    [posted] = message_for(Event("errors", "down", blocks=(block,)), "e1", "#ops").blocks
    assert "broadcast" not in json.dumps(posted)
    quiet = [{"type": "text", "text": text} for text in ("@here", "@U1", "@S1")]
    assert posted["elements"] == [{"type": "rich_text_section", "elements": [*quiet, elements[3]]}]


def test_an_event_of_blocks_alone_gets_their_words_as_text() -> None:
    blocks = (
        {"type": "header", "text": {"type": "plain_text", "text": "Disk & more"}},
        {"type": "divider"},
        {"type": "section", "text": {"type": "mrkdwn", "text": "*db1* <!here>"}},
    )
    assert message_for(Event("errors", blocks=blocks), "e1", "#ops").text == "Disk &amp; more\n*db1* &lt;!here>"


def test_an_event_of_blocks_without_words_gets_its_category_as_text() -> None:
    assert message_for(Event("errors", blocks=({"type": "divider"},)), "e1", "#ops").text == "errors"


@pytest.mark.parametrize("allow_mentions", [False, True])
def test_blocks_nested_beyond_reason_do_no_harm(*, allow_mentions: bool) -> None:
    block: dict[str, object] = {"type": "section"}
    for _ in range(900):
        block = {"type": "section", "elements": [block]}
    [posted] = message_for(
        Event("errors", "x", blocks=(block,)), "e1", "#ops", Style(allow_mentions=allow_mentions)
    ).blocks
    assert len(json.dumps(posted)) < 2_000


@given(st.text(), st.integers(1, 50))
def test_one_line_is_printable_and_within_its_limit(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert re.sub(r"(?<=[^\x00-\x7f])[\u200c\u200d](?=[^\x00-\x7f])", "", line).isprintable()


def test_one_line_shows_control_characters_as_escapes() -> None:
    assert one_line("a\n\x1b[31mb\u202ec\t d") == r"a \x1b[31mb\u202ec d"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("👩\u200d👩\u200d👧 at ❤\ufe0f\u200d🔥", "👩\u200d👩\u200d👧 at ❤\ufe0f\u200d🔥"),
        ("\u0915\u094d\u200d\u0937", "\u0915\u094d\u200d\u0937"),
        ("adm\u200din é\u200d", r"adm\u200din é\u200d"),
        ("é\u200d\u200dé", r"é\u200d\u200dé"),
        ("é\u200d\u202eé", r"é\u200d\u202eé"),
        ("é\u200bé\ufeffé", r"é\u200bé\ufeffé"),
    ],
)
def test_joiners_stay_between_characters_that_they_join_and_nowhere_else(text: str, shown: str) -> None:
    assert one_line(text) == shown


ALLOWED = Style(allow_mentions=True)


def test_a_mention_in_markup_notifies_where_the_category_allows_it() -> None:
    text = f"look {' '.join(MENTIONS)} now"
    assert message_for(Event("errors", f"{text}\x00", mrkdwn=True), "e1", "#ops", ALLOWED).text == text


def test_plain_text_notifies_nobody_even_where_mentions_are_allowed() -> None:
    assert message_for(Event("errors", "a <!channel>"), "e1", "#ops", ALLOWED).text == "a &lt;!channel&gt;"


def test_blocks_keep_their_mentions_where_the_category_allows_them() -> None:
    section = {"type": "section", "text": {"type": "mrkdwn", "text": "<!channel> *down*\x1b"}}
    elements = [{"type": "broadcast", "range": "here"}, {"type": "user", "user_id": "U1"}]
    rich = {"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": elements}]}
    message = message_for(Event("errors", blocks=(section, rich)), "e1", "#ops", ALLOWED)
    assert message.blocks == ({"type": "section", "text": {"type": "mrkdwn", "text": "<!channel> *down*"}}, rich)
    assert message.text == "<!channel> *down*"


def test_an_allowed_mention_is_never_cut_in_two() -> None:
    event = Event("errors", "x" * 3_885 + "<!subteam^S0123456|ops>" + "y" * 100, mrkdwn=True)
    assert message_for(event, "e1", "#ops", ALLOWED).text == "x" * 3_885 + CUT_MARK
