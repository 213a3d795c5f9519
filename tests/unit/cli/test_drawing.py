"""How parts give room, break, and look on a stream."""

from __future__ import annotations

import pytest

from dispatcher.cli.drawing import (
    Bar,
    Filling,
    Fitting,
    Group,
    Look,
    OneLine,
    Part,
    Table,
    Text,
    cut,
    joined,
    painted,
    share_bar,
)

PLAIN = Look(is_ascii=False, is_styled=False)


def drawn(part: Part, room: int, look: Look = PLAIN) -> list[str]:
    return [painted(line, look) for line in part.lines(room)]


@pytest.mark.parametrize(
    ("text", "room", "lines"),
    [
        ("disk full on db1", 9, ["disk full", "on db1"]),
        ("disk full on db1", 16, ["disk full on db1"]),
        ("a\n\nb", 9, ["a", "", "b"]),
        ("supercalifragilistic ok", 8, ["superca…", "ok"]),
        ("", 8, [""]),
        ("größe 😀😀 ok", 6, ["größe", "😀😀", "ok"]),
        ("😀😀😀", 4, ["😀…"]),
    ],
)
def test_text_breaks_between_words_and_cuts_a_word_that_is_too_long(text: str, room: int, lines: list[str]) -> None:
    assert drawn(Text(text), room) == lines


@pytest.mark.parametrize(
    ("text", "room", "lines"),
    [
        ("supercalifragilistic ok", 8, ["supercal", "ifragili", "stic ok"]),
        ("at supercalifragilistic", 8, ["at", "supercal", "ifragili", "stic"]),
        ("x😀😀😀", 4, ["x😀", "😀😀"]),
    ],
)
def test_text_that_folds_loses_nothing(text: str, room: int, lines: list[str]) -> None:
    assert drawn(Text(text, folds=True), room) == lines


def test_the_pieces_of_a_text_keep_their_styles_where_it_breaks() -> None:
    text = joined(", ", [Text("3 sent", "green"), Text("1 dead", "bold red"), Text("0 parked")])
    styled = Look(is_ascii=False, is_styled=True)
    assert drawn(text, 15, styled) == [
        "\x1b[32m3 sent\x1b[0m, \x1b[1;31m1 dead\x1b[0m,",
        "0 parked",
    ]
    without = Look(is_ascii=False, is_styled=True, has_colours=False)
    assert drawn(text, 15, without)[0] == "3 sent, \x1b[1m1 dead\x1b[0m,"


def table(*rows: tuple[str, str], breaks: bool = True) -> Table:
    found = Table()
    found.add_column("Name", breaks=breaks)
    found.add_column("Count", is_right=True, breaks=False)
    for name, count in rows:
        found.add_row(cut(name), count)
    return found


def test_a_table_has_a_rule_below_its_headings_and_figures_stand_on_the_right() -> None:
    shown = table(("errors", "7"), ("deploys", "1234"))
    shown.add_section()
    shown.add_row("all", "1241")
    assert drawn(shown, 80) == [
        "Name     Count",
        "──────────────",
        "errors       7",
        "deploys   1234",
        "",
        "all       1241",
    ]


def test_the_widest_column_that_may_break_gives_room_first() -> None:
    wide = Table(is_grid=True)
    wide.add_column(style="bold", breaks=False)
    wide.add_column()
    wide.add_column(folds=True)
    wide.add_row("To do", OneLine("a-name-of-some-length", shortest=5), "give the token one more scope")
    assert wide.widths() == (len("To") + 2 + 5 + 2 + len("scope"), 5 + 2 + 21 + 2 + 29)
    assert drawn(wide, 38) == ["To do  a-name-of-so…  give the token", "                      one more scope"]
    assert all(len(line) <= 12 for line in drawn(wide, 12)), "where nothing can break any more, all are cut"


def test_a_heading_that_breaks_stands_directly_above_the_rule() -> None:
    shown = Table()
    shown.add_column("Suppressed in 30m")
    shown.add_column("Id", breaks=False)
    shown.add_row("7", "an-id")
    assert drawn(shown, 19) == [
        "Suppressed",
        "in 30m        Id",
        "─" * 19,
        "7             an-id",
    ]


def test_the_first_form_that_fits_is_taken_and_else_the_last() -> None:
    forms = Fitting(lambda: Text("all of it, whole"), lambda: OneLine("all of it"), lambda: OneLine("all"))
    assert [drawn(forms, room) for room in (16, 15, 9, 8, 2)] == [
        ["all of it, whole"],
        ["all of it"],
        ["all of it"],
        ["all"],
        ["a…"],
    ]


@pytest.mark.parametrize(("height", "rows"), [(10, 5), (5, 5), (3, 3), (2, 2)])
def test_a_screen_is_filled_with_as_many_rows_as_it_has_room_for(height: int, rows: int) -> None:
    part = Filling(lambda count: Group(*map(str, range(min(5, count)))), height, 2)
    assert len(drawn(part, 80)) == rows


def test_a_stream_without_such_characters_gets_ascii() -> None:
    bar = Bar((*share_bar(1, 2, "green").pieces, (1, "·", "dim")))
    assert drawn(Group(bar, cut("a name of some length")), 11, Look(is_ascii=True, is_styled=False)) == [
        "#####-----.",
        "a name of .",
    ]


def test_a_share_of_anything_is_at_least_one_character() -> None:
    assert [drawn(share_bar(part, 100, ""), 10) for part in (0, 1, 100, 250)] == [
        ["░" * 10],
        ["█" + "░" * 9],
        ["█" * 10],
        ["█" * 10],
    ]


def test_a_group_is_as_wide_as_its_widest_part_and_a_column_of_fixed_width_as_it_says() -> None:
    group = Group(cut("a-name-of-some-length"), OneLine("abc"), "two words")
    assert group.widths() == (12, 21)
    grid = Table(is_grid=True)
    grid.add_column(width=7)
    grid.add_column()
    grid.add_row("ok", "server")
    assert grid.widths() == (7 + 2 + 6, 7 + 2 + 6)
    assert drawn(grid, 40) == ["ok       server"]
    assert Table().widths() == (0, 0)
    assert Table(is_grid=True).lines(10) == []


def test_where_nothing_may_break_all_columns_give_alike() -> None:
    grid = Table(is_grid=True)
    for _ in range(3):
        grid.add_column(breaks=False)
    grid.add_row("aaaaaaaa", "bbbbbbbb", "cccccccc")
    assert drawn(grid, 19) == ["aaaa…  bbbb…  cccc…"]


def test_a_cut_counts_all_pieces_before_it() -> None:
    line = Text(pieces=(("one ", "bold"), ("two ", ""), ("three", "red")), breaks=False)
    assert drawn(line, 10) == ["one two t…"]
    assert drawn(line, 5) == ["one …"]
    assert drawn(Text(pieces=(("ab", ""), ("😀😀", "")), breaks=False), 4) == ["ab…"]
