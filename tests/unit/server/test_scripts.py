"""Scripts as they are sent."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from dispatcher.data_files import data_file
from dispatcher.server.scripts import read_script
from tests.support.mutations import FIELDS

SCRIPTS: Final = sorted(path.stem for path in data_file("lua", "take.lua").parent.glob("*.lua"))
PARTS: Final = sorted(data_file("lua", "include", "plan.lua").parent.glob("*.lua"))

OF_OTHERS: Final = {
    "endings",  # `lines` asks whether the script has it
    *("threads", "roots", "keep_us"),  # of a table that `threads` makes
}
"""What ``at`` need not have in each script that reads it."""

_PART: Final = re.compile(r"^local (\w+) = module\(", re.MULTILINE)
_MADE: Final = re.compile(r"^ *(?:local )?function ([\w.]+)\(", re.MULTILINE)
_COMMENT: Final = re.compile(r"--.*")


def code_of(text: str) -> str:
    return _COMMENT.sub("", text)


def read_of_table(code: str) -> set[str]:
    """What the code reads of ``at``, and does not set itself."""
    assigned = re.findall(r"at\.(\w+)", "".join(re.findall(r"^ *at\.[\w., ]+ =", code, re.MULTILINE)))
    return set(re.findall(r"\bat\.(\w+)", code)) - set(assigned)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_every_function_of_a_part_that_it_names(name: str) -> None:
    text = code_of(read_script(name))
    made = set(_MADE.findall(text))
    for part in PARTS:
        source = code_of(part.read_text(encoding="utf-8"))
        for each in _PART.findall(source):
            of_part = {made for made in _MADE.findall(source) if made.startswith(f"{each}.")}
            named = of_part & set(re.findall(rf"\b{each}\.\w+", text))
            if each in _PART.findall(text):
                assert named <= made


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_every_local_function_that_it_calls(name: str) -> None:
    text = code_of(read_script(name))
    made = set(_MADE.findall(text))
    local = {each for part in PARTS for each in _MADE.findall(part.read_text(encoding="utf-8")) if "." not in each}
    assert {each for each in re.findall(r"(?<![.\w])(\w+)\(", text) if each in local} <= made


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_no_function_of_a_part_that_it_never_names(name: str) -> None:
    text = code_of(read_script(name))
    parts = _PART.findall(text)
    named = Counter([*re.findall(r"\w+", text), *re.findall(r"\b(?=(\w+\.\w+))", text)])
    for each in _MADE.findall(text):
        if "." not in each or each.partition(".")[0] in parts:
            assert named[each] > 1, each


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_includes_no_part_that_it_never_names(name: str) -> None:
    text = code_of(read_script(name))
    for part in _PART.findall(text):
        others = re.sub(rf"^local {part} = module\(.*?^end\)$", "", text, flags=re.MULTILINE | re.DOTALL)
        assert re.search(rf"\b{part}\.\w", others), part


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_names_every_key_and_prefix_that_it_declares(name: str) -> None:
    text = code_of(read_script(name))
    declared = re.search(r"^local K = \{.*\}\n", text, re.MULTILINE)
    if declared is None:
        return
    body = text.replace(declared[0], "")
    of_records = {
        f"{each}{part}" for each in ("limited", "others") for part in ("", "_older", "_log") if f"'{each}'" in body
    }
    named = {*re.findall(r"\.(\w+)", body), *of_records}
    assert set(re.findall(r"(\w+) = (?:KEYS|OURS)", declared[0])) - named == set()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_declares_every_key_and_prefix_that_it_reads(name: str) -> None:
    text = code_of(read_script(name))
    if "local at = K\n" not in text:
        return
    declared = re.findall(r"(\w+) = (?:KEYS|OURS)", text)
    missing = read_of_table(text) - {*declared, *OF_OTHERS}
    assert missing == set(), f"add to @keys or @prefixes of lua/{name}.lua"


def table_of(part: Path, seen: frozenset[str] = frozenset()) -> set[str]:
    """The words of the part's header, and of the headers that it says its table is also of."""
    header = part.read_text(encoding="utf-8").partition("\nlocal ")[0]
    _, _, of_table = header.partition("-- `at` ")
    words = set(re.findall(r"\w+", header))
    for other in re.findall(r"include/(\w+)\.lua", of_table):
        if other not in seen:
            words |= table_of(part.with_stem(other), seen | {part.stem})
    return words


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.stem)
def test_the_header_of_a_part_names_all_that_it_reads_of_its_table(part: Path) -> None:
    missing = read_of_table(code_of(part.read_text(encoding="utf-8"))) - table_of(part)
    assert missing == set(), f"add to the line '-- `at` names the keys' of lua/include/{part.name}"


def test_each_field_of_a_header_is_checked_explained_and_spoilt_in_tests() -> None:
    """A field that ``record.split`` does not check stops every script that meets a malformed one."""
    record = data_file("lua", "include", "record.lua").read_text(encoding="utf-8")
    comment, code = record.split("\nlocal record", 1)
    checked = set(re.findall(r"(\w+) = ", code.partition("local IS_SOUND = {")[2].partition("\n  }\n")[0]))
    everything = "".join(code_of(read_script(name)) for name in SCRIPTS)
    assert set(re.findall(r"\bheader\.(\w+)", everything)) - checked == set(), "add to IS_SOUND in record.lua"
    assert checked - set(re.findall(r"\w+", comment)) == set(), "add to the comment of record.lua"
    assert checked ^ set(FIELDS) == set(), "add to FIELDS in tests/support/mutations.py"


def test_a_function_of_a_table_that_goes_by_other_names_stays() -> None:
    assert "function SET.look(" in read_script("gate")  # called as `store.look`
