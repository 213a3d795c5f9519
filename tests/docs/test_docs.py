"""What the README and the documents show and say holds: samples run, links resolve, tables are those of the program."""

from __future__ import annotations

import re
import socket
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from dispatcher.cli import exits
from dispatcher.core.digests import Act, plan_of
from dispatcher.core.event import Event
from dispatcher.core.explain import Explanation
from dispatcher.core.states import Step
from dispatcher.core.tally import Tally, Telling, counting_of
from dispatcher.server.keys import Keys
from dispatcher.settings.environment import variables
from dispatcher.settings.limits_schema import (
    CategorySection,
    ChannelSection,
    DeadLettersSection,
    DecisionsSection,
    GlobalSection,
    HookSection,
    QuietSection,
    RuleSection,
)
from tests.docs import environment_table
from tests.docs.reader import Reader
from tests.docs.samples import PAGES, ROOT, RUNNABLE, anchors, code_spans, links, samples, section
from tests.support.servers import RedisServer

DOCS: Final = ROOT / "docs"
SAMPLES: Final = {page: [each for each in samples(page) if each.is_run] for page in PAGES}
ALL_SAMPLES: Final = [sample for page in PAGES for sample in samples(page)]
NOTES: Final = re.compile(r'(not run: .+|runs in the background until it says ".+"|in \S+)?')
SOURCES: Final = tuple(
    path.read_text(encoding="utf-8")
    for folder, ending in (("dispatcher", "py"), ("lua", "lua"), ("config", "*"))
    for path in sorted((ROOT / folder).rglob(f"*.{ending}"))
)


def short(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)


@pytest.mark.parametrize("page", [page for page in PAGES if SAMPLES[page]], ids=short)
def test_the_samples_of_a_page_run_one_after_another(page: Path, tmp_path: Path, own_server: RedisServer) -> None:
    port, serving = free_port(), free_port()
    places = {
        "dispatcher slack-stand-in": f"dispatcher slack-stand-in --port {port}",
        "127.0.0.1:8901": f"127.0.0.1:{port}",
        "dispatcher serve": f"dispatcher serve --port {serving}",
        "dispatcher up": f"env DISPATCHER_SERVE_PORT={serving} dispatcher up",
        "127.0.0.1:8910": f"127.0.0.1:{serving}",
        "redis://127.0.0.1:6379/0": own_server.url,
    }
    with Reader(tmp_path, places) as reader:
        for sample in SAMPLES[page]:
            reader.run(sample)


def test_every_sample_is_run_or_says_why_not() -> None:
    for sample in ALL_SAMPLES:
        assert NOTES.fullmatch(sample.note), f"{sample.place}: {sample.note!r} is no note that samples.py knows"
        assert sample.is_run or sample.language not in RUNNABLE or sample.note, f"{sample.place} is not run"


def test_every_link_within_the_project_resolves() -> None:
    for page, target in [(each, target) for each in PAGES for target in links(each)]:
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(there), f"{page.name} links to {target}"


def test_every_file_a_page_names_exists() -> None:
    for page, span in [(each, span) for each in PAGES for span in code_spans(each.read_text(encoding="utf-8"))]:
        if re.fullmatch(r"(dispatcher|lua|config|deploy|docs|tests)/[\w./@-]*", span):
            assert (ROOT / span).exists(), f"{page.name} names {span}"


def test_every_variable_a_page_names_is_read() -> None:
    read = {name for variable in variables() for name in variable.names} | {"DISPATCHER_TEST_SERVER"}
    for page in PAGES:
        named = set(re.findall(r"\bDISPATCHER_[A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8")))
        assert named <= read, f"{page.name} names {named - read}"


def test_words_of_the_glossary_that_are_code_stand_in_the_code() -> None:
    spans = code_spans((DOCS / "glossary.md").read_text(encoding="utf-8"))
    for span in spans:
        if span != "this type" and not span.startswith("DISPATCHER_"):
            assert any(span in source for source in SOURCES), f"{span} is nowhere in the code"


def test_every_page_is_in_the_index_once() -> None:
    pages = [path.name for path in DOCS.glob("*.md") if path.name != "README.md"]
    listed = [target for target in links(DOCS / "README.md") if "/" not in target]
    assert sorted(listed) == sorted(pages)


def test_every_decision_is_in_the_index() -> None:
    index = DOCS / "adr" / "README.md"
    records = sorted(path.name for path in index.parent.glob("[0-9]*.md"))
    assert [target for target in links(index) if target[0].isdigit()] == records
    for name in records:
        headings = re.findall(r"^## (.+)$", (index.parent / name).read_text(encoding="utf-8"), re.MULTILINE)
        assert headings == ["Context", "Decision", "Consequences"], name


def test_the_table_of_variables_is_current() -> None:
    remedy = "run: python -m tests.docs.environment_table"
    assert environment_table.written_table() == environment_table.table(), remedy


def test_every_field_of_an_explanation_is_documented_and_no_other() -> None:
    table = section(DOCS / "operations.md", "Explaining").partition("| key | means |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", table, re.MULTILINE)
    documented = re.findall(r"\w+", " ".join(rows))
    assert sorted(documented) == sorted(Explanation.__dataclass_fields__), "the table of keys in operations.md"


def test_every_field_of_an_event_is_documented_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", section(DOCS / "events.md", "Fields"), re.MULTILINE)
    assert sorted(rows) == sorted(["v", *Event.__dataclass_fields__])


def test_every_key_of_the_limits_file_is_documented_and_no_other() -> None:
    page = DOCS / "configuration.md"
    rule, category = RuleSection.key_names(), CategorySection.key_names()
    assert set(rule) < set(category), "the row categories.NAME.KEY says so"
    available = {
        *(f"global.{key}" for key in GlobalSection.key_names()),
        *(f"channels.{name}.{key}" for name in ("default", '"#NAME"') for key in ChannelSection.key_names()),
        *(f"defaults.{key}" for key in rule),
        *(f"categories.NAME.{key}" for key in ["KEY", *category] if key not in rule),
        *(f"quiet.NAME.{key}" for key in QuietSection.key_names()),
        *(f"hooks.NAME.{key}" for key in HookSection.key_names()),
        *(f"dead_letters.{key}" for key in DeadLettersSection.key_names()),
        *(f"decisions.{key}" for key in DecisionsSection.key_names()),
        "unknown_categories",
    }
    assert set(first_cells(section(page, "The keys"))) == available


def test_every_key_that_is_stored_is_listed_and_no_other() -> None:
    key = r"[a-z]+(?::[a-z]+|:<[^>]+>(?:=<v>)?)*"
    listed = section(DOCS / "internals.md", "What is stored").partition("\nours:")[2]
    runs = re.findall(rf"({key}(?:, {key})*) +(?:STRING|HASH|LIST|SET|ZSET|STREAM)\b", listed)
    names = {re.sub(r"^(line:).*|<.*", r"\1", name) for run in runs for name in run.split(", ")}
    keys = Keys("n")
    stored: set[str] = set()
    for attribute in set(vars(Keys)) - {"named", "bells"}:  # a way to find the others, and the channels of wake-ups
        if not attribute.startswith("_") and not attribute.endswith("_prefix"):
            found = getattr(keys, attribute)
            whole = found("") if callable(found) else found
            stored |= {each.removeprefix("{n}:") for each in ([whole] if isinstance(whole, str) else whole)}
    assert names == stored


def test_the_runbook_names_log_lines_that_are_explained() -> None:
    page = DOCS / "operations.md"
    rows = re.findall(r"^\| (`\w+\.\w+`.*?) \|", section(page, "Log lines"), re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`(\w+\.\w+)`", row)}
    assert len(names) > 10
    assert {name for name in names if f"`{name}`" not in section(page, "Logs")} == set()


def test_exit_codes_are_those_of_the_program() -> None:
    codes = {value for name, value in vars(exits).items() if name.isupper() and type(value) is int}
    rows = re.findall(r"^\| (\d+) \|", section(DOCS / "operations.md", "Exit codes"), re.MULTILINE)
    assert {int(row) for row in rows} == codes


def test_every_line_of_the_log_is_documented() -> None:
    name = re.compile(
        r'(?:say|tell|_write)\((?:[^"]*?, )?"([a-z_]+\.[a-z_]+)"|'
        r'"((?:event|worker|serve|lease|silence)\.[a-z_]+)"'
    )
    written = {found for source in SOURCES for groups in name.findall(source) for found in groups if found}
    written |= lines_of_digest_messages()
    documented = {
        span
        for cell in first_cells(section(DOCS / "operations.md", "Logs"))
        for span in cell.split("`, `")
        if "." in span
    }
    assert documented == written


def lines_of_digest_messages() -> set[str]:
    """What each kind of them posts or edits; it may have to wait before that, and it may fail."""
    counting = counting_of(Telling.DIGEST, "errors", 1, own=None, share=None, window=None)
    steps = {Act.POST: Step.POSTED, Act.EDIT: Step.EDITED}
    found: set[str] = set()
    for telling, shown in product(Telling, (None, 1)):
        tally = Tally("", telling, "errors", "", "", "", 2, 0, 0, 0, shown=shown, ts="1.0")
        step = steps.get(plan_of(tally, counting, can_edit=True).act)
        found |= {f"{telling}.{each}" for each in (step, "parked", "failed")} if step else set()
    return found


def first_cells(text: str) -> list[str]:
    """The code in the first cell of each row of the tables in a text."""
    return list(re.findall(r"^\| `(.+?)` \|", text, re.MULTILINE))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
