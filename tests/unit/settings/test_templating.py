"""Templates: what they make of an event, what they cannot, and that every one of them ends."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dispatcher.core.event import Event
from dispatcher.core.policy import Style, TemplateFailed
from dispatcher.core.posts import Message
from dispatcher.core.rendering import CUT_MARK, MAX_TEXT, message_for, unescape, without_controls
from dispatcher.core.units import US, Lane
from dispatcher.settings.templating import InvalidTemplate, PartMissing, compile_mapping, compile_template

NAMES = "category, text, id, labels, priority, created_at, channel"
FILTERS = (
    "capitalize, default, dictsort, first, int, items, join, last, length, lines, list, lower, replace, reverse, sort, "
    "string, title, trim, truncate, unique, upper"
)


ONE_OF_NAMES = f"is no variable here, expected one of {NAMES}"
LOOP = "first, index, index0, last, length, revindex, revindex0"
EACH = "{% for a in text %}"
NO_TIME = "it takes more than 0.25 s of the processor"
LABELS = "host=&lt;db1&gt;, items=b"


def message(source: str, event: Event, *, allow_mentions: bool = False) -> Message:
    style = Style(allow_mentions=allow_mentions, template=compile_template(source))
    return message_for(event, "e1", "#ops", style, seen_us=1_732_100_000 * US)


def made(source: str, text: str = "disk <full>\n& hot", **fields: Any) -> str:  # noqa: ANN401 - an Event's
    found = message(source, Event("errors", text, labels={"host": "<db1>", "items": "b"}, **fields))
    assert found.template_fault is None
    return found.text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (":red_circle: *{{ category }}* {{ text }}", ":red_circle: *errors* disk &lt;full&gt;\n&amp; hot"),
        ("{{ id }} {{ priority }} {{ channel }}", "e1 normal #ops"),
        ("<!date^{{ created_at }}^{date_short}|now>", "<!date^1732100000^{date_short}|now>"),
        ("{{ labels.host }} {{ labels['host'] }} {{ labels.items }}", "&lt;db1&gt; &lt;db1&gt; b"),
        ("{{ labels.rack | default('<none>') }}", "&lt;none&gt;"),
        ("{{ labels.rack if labels.rack is defined else '-' }}", "-"),
        ("{% for k, v in labels | items %}{{ k }}={{ v }}{{ '' if loop.last else ', ' }}{% endfor %}", LABELS),
        ("{% for a in text | lines %}{% for k, v in labels | items %}{{ k }}{% endfor %}{% endfor %}", "hostitems" * 2),
        ("{% for a, b in [('x', 1), ('y', 2)] %}{{ a ~ b ~ labels.items }}{% endfor %}", "x1by2b"),
        ("{{ text | lines | first | upper }}", "DISK &lt;FULL&gt;"),
        ("{{ text | lines | last | truncate(5) }}", "&amp; hot"),
        ("{{ text | replace('\n', ' / ') }}", "disk &lt;full&gt; / &amp; hot"),
        ("{{ category | replace('r', 'R', 2) }} {{ labels | join('+') }}", "eRRors host+items"),
        ("{{ text[:6] ~ '>' }}", "disk &lt;&gt;"),
        ("{% if priority == 'high' %}:fire:{% else %}:zzz:{% endif %} {{ category }}", ":zzz: errors"),
        ("{{ 'many' if text | length > 10 else 'few' }}", "many"),
        ("  {# a remark #}\n*{{ category }}*  \n", "*errors*"),
        ("{% if labels %}\n{{ category }}\n{% endif %}\nend", "errors\nend"),
        ("{% raw %}{{ text }}{% endraw %}", "{{ text }}"),
        ("<!channel> look: {{ '<!here>' }}", "<!channel> look: &lt;!here&gt;"),
    ],
)  # fmt: skip
def test_a_template_makes_the_text(source: str, text: str) -> None:
    assert made(source) == text


def test_of_a_long_text_a_template_sees_as_much_as_a_message_holds() -> None:
    assert made("{{ text | length }} {{ text[-7:] }}", "x" * 250_000) == f"{MAX_TEXT} {CUT_MARK}"
    labels = message("{{ labels.a | length }}", Event("errors", "x", labels={"a": "y" * 250_000}))
    assert labels.text == str(MAX_TEXT)


def test_created_at_and_priority_that_an_event_sets_take_precedence() -> None:
    assert made("{{ created_at }} {{ priority }}", created_at=1_700_000_000.9, priority=Lane.HIGH) == "1700000000 high"


@given(st.text(min_size=1), st.text())
def test_the_text_and_labels_of_an_event_are_shown_as_they_were_written(text: str, label: str) -> None:
    if not without_controls(text[:1_000]).strip():
        return
    found = message("({{ text }}|{{ labels.a }})", Event("errors", text[:1_000], labels={"a": label[:1_000]}))
    assert found.template_fault is None
    assert unescape(found.text) == f"({without_controls(text[:1_000])}|{without_controls(label[:1_000])})"
    assert not set("<>") & set(found.text)


MARKUP = Event("errors", "*down* <!here> <https://a.b|x> & y", mrkdwn=True)


def test_the_markup_of_an_event_stays_markup_and_notifies_nobody() -> None:
    assert message("> {{ text }}", MARKUP).text == "> *down* &lt;!here> <https://a.b|x> & y"


def test_the_markup_of_an_event_notifies_where_its_category_allows_it() -> None:
    assert message("> {{ text }}", MARKUP, allow_mentions=True).text == "> *down* <!here> <https://a.b|x> & y"


@pytest.mark.parametrize("filters", ["string", "default('-')", "trim"])
def test_markup_that_a_filter_returns_is_shown_literally_also_unchanged(filters: str) -> None:
    text = message(f"{{{{ text | {filters} }}}}", MARKUP, allow_mentions=True).text
    assert text == "*down* &lt;!here&gt; &lt;https://a.b|x&gt; &amp; y"


def test_the_words_of_blocks_are_the_text_of_an_event_of_blocks_alone() -> None:
    block = {"type": "section", "text": {"type": "mrkdwn", "text": "*a* <!here> & b"}}
    found = message("{{ text }} {{ text | upper }}", Event("errors", blocks=(block,)))
    assert found.text == "*a* &lt;!here> & b *A* &lt;!HERE&gt; &amp; B"
    assert found.blocks == ({"type": "section", "text": {"type": "mrkdwn", "text": "*a* &lt;!here> & b"}},)


@pytest.mark.parametrize("text", ["&" * 10_000, "x" * 250_000])
def test_a_text_that_is_too_long_is_cut_with_a_mark_and_never_within_an_entity(text: str) -> None:
    found = made("{{ text }}{{ text }} end", text)
    assert MAX_TEXT - 5 <= len(found) <= MAX_TEXT
    assert found.endswith(CUT_MARK)
    assert "&" not in found.replace("&amp;", "")


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("{{ labels.rack }}", "there is no label rack"),
        ("{{ labels['rack'] }}", "there is no label rack"),
        ("{{ text[9999] }}", "there is no entry 9999"),
        ("{{ text | replace('', text) }}", "it makes a value of 10200 characters, expected at most 8000"),
        ("{{ text | join(text) }}", "it makes a value of 10000 characters, expected at most 8000"),
        (
            f"{{{{ '{'x' * 1_000}' ~ {'text ~ ' * 80} '' }}}}",
            "it makes a value of 9000 characters, expected at most 8000",
        ),
        ("{{ 'x' if priority < 3 else 'y' }}", "TypeError: '<' not supported"),
        ("{% if category == 'other' %}x{% endif %}", "it made no text"),
    ],
)
def test_a_template_that_fails_leaves_the_text_as_it_was_written(source: str, fault: str) -> None:
    event = Event("errors", "disk <ful>" * 10, labels={"host": "db1"})
    found, plain = message(source, event), message_for(event, "e1", "#ops")
    assert found.text == plain.text
    assert found.template_fault is not None
    assert found.template_fault.startswith(fault)
    assert plain.template_fault is None


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("{{ txt }}", "txt is no variable here; did you mean text?"),
        ("{{ host }}{{ zone }}", f"host {ONE_OF_NAMES}; zone {ONE_OF_NAMES}"),
        ("{% for a in labels %}{% endfor %}{{ a }}", f"a {ONE_OF_NAMES}"),
        ("{{ text | uper }}", "uper is no filter; did you mean upper?"),
        ("{{ text | safe }}", f"safe is no filter, expected one of {FILTERS}"),
        ("{{ text | center(10000000) }}", f"center is no filter, expected one of {FILTERS}"),
        ("{{ txt | uper }}", "txt is no variable here; did you mean text?; uper is no filter; did you mean upper?"),
        ("{{ text is nice }}", "No test named 'nice'"),
        ("{{ text", "unexpected end of template, expected 'end of print statement'"),
        ("a\n\n{{ text }", "in line 3 of it: unexpected '}'"),
        ("{{ 'x' if text }}", "an if within {{ }} without else, expected what is shown otherwise"),
        ("{{ text.__class__ }}", ".__class__ of what is neither labels nor loop"),
        ("{% for a in text %}{{ loop.cycle }}{% endfor %}", f"a loop has no cycle, expected one of {LOOP}"),
        ("{{ labels.items() }}", "a call, which templates cannot have"),
        ("{{ range(9) }}", f"range {ONE_OF_NAMES}; a call, which templates cannot have"),
        ("{{ 9 ** 9 ** 9 }}", "a pow, which templates cannot have"),
        ("{{ text * 1000000000 }}", "a mul, which templates cannot have"),
        ("{{ '%1000000000d' % 1 }}", "a mod, which templates cannot have"),
        ("{% set a = text ~ text %}{{ a ~ a }}", "an assign, which templates cannot have"),
        ("{% macro a() %}{% endmacro %}", "a macro, which templates cannot have"),
        ("{% include 'a' %}", "an include, which templates cannot have"),
        ("{% for a in [text] %}{% endfor %}", "a list with what is no constant, which templates cannot have"),
        ("{% for a in labels recursive %}{{ loop(a) }}{% endfor %}", "a call, which templates cannot have"),
        ("{{ " + "(" * 1_500 + "1" + ")" * 1_500 + " }}", "cannot be read: RecursionError"),
    ],
)  # fmt: skip
def test_a_template_that_can_never_work_is_refused_with_all_that_is_wrong(source: str, fault: str) -> None:
    with pytest.raises(InvalidTemplate) as caught:
        compile_template(source)
    assert str(caught.value) == fault


WORDS = "text labels upper join replace first sort for a in labels endfor if endif else not recursive range(9)"
SIGNS = "( ) , ~ 1 999999999 - [ ] : | | < & * ** {# #} 'a' .host ['a'] loop.index \x00 <!here> {{ }} {{ }} {% %} {% %}"
PIECES = st.sampled_from([*WORDS.split(), *SIGNS.split(), "set x =", "for k, v in labels | items", "\n"])


@given(st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=14).map(" ".join)))
@example("{% for a in text | join(text) %}{{ a }}{% endfor %}")
@example("{{ -999999999 ~ text[999999999:] }}")
def test_every_template_is_refused_or_ends_with_a_text_that_can_be_posted(source: str) -> None:
    try:
        template = compile_template(source)
    except InvalidTemplate:
        return
    found = message_for(
        Event("errors", "a <!here> & b" * 2_000, labels={"host": "x"}), "e1", "#ops", Style(template=template)
    )
    assert found.text.strip()
    assert len(found.text) <= MAX_TEXT
    assert found.template_fault is None or found.template_fault.isprintable()


def test_a_loop_is_left_as_soon_as_the_message_is_full() -> None:
    asked = []

    class Watched(dict[str, object]):
        def __getitem__(self, name: str) -> object:
            asked.append(name)
            return "x" * 1_000

    source = "{% for a in text %}{{ labels.host }}{% endfor %}"
    text = compile_template(source).render({"text": "y" * 3_000, "labels": Watched()})
    assert len(text) == len(asked) * 1_000 == 4_000


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(EACH * 5 + "{% endfor %}" * 5, id="loops in loops"),
        pytest.param(
            EACH + ("{% if text" + " | sort" * 20 + " %}{% endif %}") + "{% endfor %}", id="filters in a loop"
        ),
        pytest.param(("{{ (text" + " | sort" * 5 + ") [:0] }}") * 160, id="filters without a loop"),
    ],
)
def test_a_template_that_takes_too_long_leaves_the_text_as_it_was_written(source: str) -> None:
    found = message(source, Event("errors", "z y x " * 700))
    assert (found.template_fault, found.text[:6]) == (NO_TIME, "z y x ")


def test_each_rendering_has_its_own_time() -> None:
    spent = compile_template(EACH * 5 + "{% endfor %}" * 5)
    with pytest.raises(TemplateFailed):
        spent.render({"text": "x" * 3_000})
    assert made("{% for a in labels %}{{ a }}{% endfor %}") == "hostitems"


def test_templates_are_equal_where_their_sources_are() -> None:
    assert compile_template("{{ text }}") == compile_template("{{ text }}") != compile_template("{{ id }}")


def test_a_failure_says_why_on_one_line() -> None:
    with pytest.raises(TemplateFailed) as caught:
        compile_template("{{ labels['a\nb'] }}").render({"labels": {}})
    assert str(caught.value) == "there is no label a b"


@pytest.mark.parametrize(
    ("source", "body", "fault"),
    [
        ("{{ body.cat }}", {}, "the body has no field cat"),
        ("{{ body.cat }}", [1], "the body has no field cat"),
        ("{{ body.order.id }}", {}, "the body has no field order.id"),
        ("{{ body['order'].id }}", {"order": None}, "the body has no field order.id"),
        ("{{ body.order.id }}", {"order": "x"}, "the body has no field order.id"),
        ("{{ body.name.index }}", {"name": "x"}, "the body has no field name.index"),
        ("{{ body.lines[0].name }}", {"lines": []}, "the body has no field lines[0].name"),
        ("{{ body[0] }}", [], "the body has no entry [0]"),
        ("{% for line in body.lines %}{% endfor %}", {}, "the body has no field lines"),
        ("{% for line in body.lines %}{{ line.name }}{% endfor %}", {"lines": [{}]}, "line has no field name"),
        ("{{ body[body.key].x }}", {}, "the body has no field key"),
        ("{{ body[body.key].x }}", {"key": "a"}, "there is no field a"),
        ("{{ body.a[0:2] | join }}", {}, "the body has no field a"),
        ("{{ headers['x-a'] == 'b' }}", {}, "the request has no header x-a"),
    ],
)
def test_a_template_of_a_hook_names_the_field_that_is_missing(source: str, body: object, fault: str) -> None:
    with pytest.raises(PartMissing) as caught:
        compile_mapping(source).render({"body": body, "headers": {}})
    assert str(caught.value) == fault


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ body.order.id | default('-') }}", "-"),
        ("{{ body['order']['id'] | default('-') }}", "-"),
        ("{{ body.order.id is defined }}", "False"),
        ("{% for each in body.lines %}{{ loop.index }}{{ each.name }}{% endfor %}", "1a2b"),
        ("{{ body.index }} {{ body.lines[-1].name }}", "4 b"),
    ],
)
def test_a_template_of_a_hook_may_ask_whether_a_field_is_there(source: str, text: str) -> None:
    body = {"index": 4, "lines": [{"name": "a"}, {"name": "b"}]}
    assert compile_mapping(source).render({"body": body, "headers": {}}) == text


def test_jinja_is_loaded_only_where_a_file_has_a_template() -> None:
    code = (
        "import sys; from dispatcher.settings.limits_file import read_limits;"
        "from dispatcher.settings.limits_json_schema import limits_json_schema; limits_json_schema();"
        'import dispatcher.app.running; read_limits("categories: {a: {}}", "x"); print("jinja2" in sys.modules);'
        'read_limits("categories: {a: {template: \\"{{ text }}\\"}}", "x"); print("jinja2" in sys.modules)'
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said == "False\nTrue\n"
