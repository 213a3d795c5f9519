"""The table of variables in docs/configuration.md, from the settings: ``python -m tests.docs.environment_table``."""

from __future__ import annotations

from typing import Final

from dispatcher.settings.environment import Variable, variables
from tests.docs.samples import ROOT

PAGE: Final = ROOT / "docs" / "configuration.md"
BEGIN: Final = "<!-- table of variables: made by tests/docs/environment_table.py -->\n"
END: Final = "<!-- end of the table -->\n"


def table() -> str:
    """The rows, in the order of the settings."""
    head = "| variable | default | expected | meaning |\n| --- | --- | --- | --- |\n"
    return head + "".join(_row(variable) for variable in variables())


def written_table() -> str:
    """What stands between the marks on the page."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return rest.partition(END)[0]


def write_table() -> None:
    """Put the table of now between the marks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}", encoding="utf-8")


def _row(variable: Variable) -> str:
    names = [f"`{variable.name}`"]
    if variable.also is not None:
        names.append(f"also `{variable.also}`")
    if variable.file_name is not None:
        names.append(f"or a file: `{variable.file_name}`")
    default = variable.default or "none"
    if variable.default and " " not in default:
        default = f"`{default}`"
    return f"| {'<br>'.join(names)} | {default} | {variable.expected} | {variable.description} |\n"


if __name__ == "__main__":
    write_table()
