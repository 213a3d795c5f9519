"""What the operators make of small sources, and of every source of the project."""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any, Final

import pytest

from tests.mutants import lua, python
from tests.mutants.change import Change, Mutant, named
from tests.mutants.equivalents import equivalents, parsed
from tests.mutants.harness import PROJECT
from tests.mutants.rules import RULES
from tests.mutants.score import drawn
from tests.mutants.sources import TESTS, all_mutants, listed_files, listed_tests, mutants_of, read

FILES: Final = listed_files()


def mutated(text: str, changes: list[Change]) -> list[str]:
    """The text after each change, blanks at the ends of lines left out."""
    return sorted("\n".join(line.rstrip() for line in each.applied(text).split("\n")) for each in made(text, changes))


def made(text: str, changes: list[Change]) -> list[Mutant]:
    return [*named("file", text, changes, ())]


@pytest.mark.parametrize(
    ("text", "mutants"),
    [
        ("return a < b", ["return a <= b"]),
        ("return a <= b, a > b", ["return a < b, a > b", "return a <= b, a >= b"]),
        ("return a == b, a ~= b", ["return a == b, a == b", "return a ~= b, a ~= b"]),
        ("return a and not b or c", ["return a and  b or c", "return a and not b and c", "return a or not b or c"]),
        ("return a + b - 1", ["return a + b + 1", "return a + b - 2", "return a - b - 1"]),
        ("return t[-1], 0x10, 1.5", ["return t[-2], 0x10, 1.5"]),
        ("return 60000000", ["return 120000000"]),
        ("return math.min(a, b)", ["return math.max(a, b)"]),
        ("return math.huge, max", []),
        ("return true", ["return false"]),
        ("f(a)\nt.g(b):h(c)\n", ["\nt.g(b):h(c)\n", "f(a)\n\n"]),
        ("local a = f(b)", []),
        ("local a\na = f(\n  b)\nt.u[v] = { w }\nlocal c",
         ["local a\n\nt.u[v] = { w }\nlocal c", "local a\na = f(\n  b)\n\nlocal c"]),
        ("a = b\n  or f()\nreturn", ["\nreturn", "a = b\n  and f()\nreturn"]),
        ("t.f = function(a) return a end", []),
        ("if a then b() end", ["if a then  end", "if not (a) then b() end"]),
        ("if a == b then elseif not c then end",
         ["if a == b then elseif  c then end", "if a ~= b then elseif not c then end"]),
        (
            "if a == b or c then end",
            ["if a == b and c then end", "if a ~= b or c then end", "if not (a == b or c) then end"],
        ),
        ("while a do break end", ["while a do  end"]),
        ("local function f(a)\n  if a then return a, 1 end\n  return nil\nend",
         ["local function f(a)\n  if a then  end\n  return nil\nend",
          "local function f(a)\n  if a then return a, 2 end\n  return nil\nend",
          "local function f(a)\n  if not (a) then return a, 1 end\n  return nil\nend"]),
        ("return redis.call('ZADD', k, 'XX', s, m)", ["return 1", "return redis.call('ZADD', k, s, m)"]),
        ("return redis.call('LPUSH', k, m)", ["return redis.call('RPUSH', k, m)"]),
        ("return redis.call('ZCOUNT', k, '(' .. a, b)", ["return redis.call('ZCOUNT', k,  a, b)"]),
        ("return f(at.a, at.b), g(a_us, b_us), h(a, b)",
         ["return f(at.a, at.b), g(b_us, a_us), h(a, b)", "return f(at.b, at.a), g(a_us, b_us), h(a, b)"]),
        ("local function f(a_us, b_us) end", []),
        ("-- a < b and 1\n--[[ not a\n + 1 ]] return a -- f()", []),
        ("return 'a < 1', \"not a\", [[ 1 + 2 ]], [=[ ]] 1 ]=]", []),
    ],
)  # fmt: skip
def test_a_script_gives_these_mutants(text: str, mutants: list[str]) -> None:
    assert mutated(text, [*lua.changes(text)]) == sorted(mutants)


@pytest.mark.parametrize(
    ("text", "mutants"),
    [
        ("a < b", ["a <= b"]),
        ("(a) >= (b)", ["(a) > (b)"]),
        ("a == b != c", ["a != b != c", "a == b == c"]),
        ("a is b, a is not b", ["a is not b, a is not b", "a is b, a is b"]),
        ("a in b, a not in b", ["a not in b, a not in b", "a in b, a in b"]),
        ("a and not b or c", ["a and b or c", "a and not b and c", "a or not b or c"]),
        ("not (a or b)", ["(a or b)", "not (a and b)"]),
        ("a + 1 - b", ["a + 1 + b", "a + 2 - b", "a - 1 - b"]),
        ("'a' + b, a + f'{b}'", []),
        ("a: int = 1_000", ["a: int = 1001"]),
        ("a = 1.5, 60_000", ["a = 1.5, 120000", "a = 2.5, 60_000"]),
        ("a = True", ["a = False"]),
        ("a = max(b, c)", ["a = min(b, c)"]),
        ("f(a)\nb = g()", ["pass\nb = g()"]),
        ("await f(a)", ["pass"]),
        ("a.b = c\na[b] = d\ne = f", ["a.b = c\npass\ne = f", "pass\na[b] = d\ne = f"]),
        ("class A:\n    def __init__(self):\n        self.a = b", []),
        ("a += b", ["a -= b", "pass"]),
        ("if a:\n    b", ["if (not (a)):\n    b"]),
        ("if not a or b < c:\n    b", [
            "if (not (not a or b < c)):\n    b", "if a or b < c:\n    b",
            "if not a and b < c:\n    b", "if not a or b <= c:\n    b",
        ]),
        ("if a is None:\n    b", ["if a is not None:\n    b"]),
        ("[a for a in b if a]", ["[a for a in b if (not (a))]"]),
        ("a if b else c", ["a if (not (b)) else c"]),
        ("match a:\n    case b if c:\n        d", ["match a:\n    case b if (not (c)):\n        d"]),
        ("for a in b:\n    break", ["for a in b:\n    pass"]),
        ("def f(a):\n    for b in a:\n        return b\n    return None",
         ["def f(a):\n    for b in a:\n        pass\n    return None"]),
        ("raise a", ["pass"]),
        ("a = f(b.c, b.d, e)", ["a = f(b.d, b.c, e)"]),
        ("a = f(b_us, c_us)", ["a = f(c_us, b_us)"]),
        ("a = f(b, c=d, e=f)", ["a = f(b, c=d)", "a = f(b, e=f)"]),
        ("a = f(c=d, e=f)", ["a = f(c=d)", "a = f(e=f)"]),
        ("a = f(\n    c=d,\n)", ["a = f(\n\n)"]),
        ("a = A.B, A.C, D.E", ["a = A.B, A.B, D.E", "a = A.C, A.C, D.E"]),
        ("a = zip(a, b, strict=True)", []),
        ("'''1 < 2'''\n# 1 < 2\ndef f(a: Literal[1] = b) -> Literal[2]:\n    '''1 + 2'''", []),
        ("@dataclass(frozen=True)\nclass A:\n    b: int", []),
        ("f'{a + 1}'", []),
        ("é = 'é', 1", ["é = 'é', 2"]),
        ("assert_never(a)", []),
        ("if TYPE_CHECKING:\n    from a import b", []),
    ],
)  # fmt: skip
def test_a_module_gives_these_mutants(text: str, mutants: list[str]) -> None:
    assert mutated(text, [*python.changes(text)]) == sorted(mutants)


def test_a_mutant_keeps_its_name_while_other_lines_change() -> None:
    text = "local function f(a)\n  return a < 1 or a < 1\nend\n"
    names = [each.name for each in made(text, [*lua.changes(text)])]
    assert names[:2] == ["file f: return a < 1 or a < 1 [< to <=]", "file f: return a < 1 or a < 1 [1 to 2]"]
    assert "file f: return a < 1 or a < 1 [< to <=] #2" in names
    longer = "local x = y\n" + text
    assert [each.name for each in made(longer, [*lua.changes(longer)])] == names


def test_a_mutant_of_a_method_names_its_class() -> None:
    text = "class A:\n    def f(self):\n        return 1\n"
    assert [each.name for each in made(text, [*python.changes(text)])] == ["file A.f: return 1 [1 to 2]"]


def test_a_mutant_shows_its_lines_before_and_after() -> None:
    text = "a = 1\nf(\n  b)\nc = d\n"
    by_operator = {each.name.rpartition("[")[2]: each.difference(text) for each in made(text, [*python.changes(text)])}
    assert by_operator == {"1 to 2]": "file:1\n-a = 1\n+a = 2", "call dropped]": "file:2\n-f(\n-  b)\n+pass"}


def test_a_mutant_is_refused_where_its_file_has_changed() -> None:
    [mutant] = made("return true", [*lua.changes("return true")])
    with pytest.raises(ValueError, match="holds 'nil', not 'true'"):
        mutant.applied("return nil")


def test_every_file_of_the_table_has_mutants_each_with_its_own_name_and_every_equivalent_is_one_of_them() -> None:
    every = [*all_mutants()]
    assert [name for name, count in Counter(each.name for each in every).items() if count > 1] == []
    mutated = {each.file for each in every}
    assert {file for file in FILES if file.endswith(".lua")} <= mutated
    rows = {glob: {path.relative_to(PROJECT).as_posix() for path in PROJECT.glob(glob)} for glob in TESTS}
    assert [glob for glob, files in rows.items() if glob.endswith(".py") and mutated.isdisjoint(files)] == []
    assert equivalents().keys() - {each.name for each in every} == set()


@pytest.mark.parametrize("most", [pytest.param(50, id="some"), pytest.param(300, id="more", marks=pytest.mark.slow)])
def test_mutants_of_modules_compile(most: int) -> None:
    every = [mutant for mutant in all_mutants() if mutant.file.endswith(".py")]
    for mutant in drawn(every, most, ""):  # the harness refuses any other that does not
        ast.parse(mutant.applied(read(mutant.file)), mutant.name)


@pytest.mark.parametrize("most", [pytest.param(20, id="some"), pytest.param(100_000, id="all", marks=pytest.mark.slow)])
def test_mutants_of_scripts_compile(redis: Any, most: int) -> None:  # noqa: ANN401 - redis-py types eval as all it could be
    compiles = "local all = {} for i, text in ipairs(ARGV) do all[i] = loadstring(text) and 1 or 0 end return all"
    for file in FILES:
        if file.endswith(".lua"):
            mutants = drawn([*mutants_of(file)], most, "")
            compiled = redis.eval(compiles, 0, *(each.applied(read(file)) for each in mutants))
            assert [each.name for each, is_good in zip(mutants, compiled, strict=True) if not is_good] == []


def test_no_script_is_left_out() -> None:
    scripts = {path.relative_to(PROJECT).as_posix() for path in PROJECT.glob("lua/**/*.lua")}
    assert scripts == {file for file in FILES if file.endswith(".lua")}


def test_the_listed_tests_every_file_exist() -> None:
    tests = {test for file in FILES for test in listed_tests(file)} | {rule.test for rule in RULES}
    assert sorted(test for test in tests if not (PROJECT / test).is_file()) == []


@pytest.mark.parametrize(
    ("text", "problem"), [("a\nb\n    why", "no reason for \\['a'\\]"), ("a\n    b\na\n    b", "'a' twice")]
)
def test_a_list_of_equivalent_mutants_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parsed(text)


def test_reasons_of_equivalent_mutants_may_take_lines() -> None:
    assert parsed("a\n    b\n    c\n\nd\n    e") == {"a": "b c", "d": "e"}


def test_a_sample_depends_on_its_seed_and_not_on_who_else_is_there() -> None:
    mutants = [Mutant(str(n), "file", 0, "a", "b", ()) for n in range(100)]
    few = drawn(mutants, 10, "seed")
    assert len(few) == 10
    assert drawn(mutants, 10, "seed") == few != drawn(mutants, 10, "other")
    assert [each for each in drawn(mutants[50:], 10, "seed") if each in few] == [
        each for each in few if each in mutants[50:]
    ]


def test_every_rule_in_words_still_applies_to_its_file() -> None:
    texts = {rule.name: read(rule.file) for rule in RULES}
    assert [
        rule.name for rule in RULES if rule.mutant(texts[rule.name]).applied(texts[rule.name]) == texts[rule.name]
    ] == []


def test_every_rule_in_words_has_a_name_of_its_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
