"""The house: which packages there are, which of them see which, and that no modules import each other in a circle.

import-linter holds the layers; grimp, which it is built on, tells of imports.
"""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import grimp
import pytest

import dispatcher

PACKAGE: Final = Path(dispatcher.__file__).parent
ROOT: Final = {"__init__", "__main__", "data_files", "errors", "handlers", "jobs", "jsonio", "shards"}
PACKAGES: Final = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
GRAPH: Final = grimp.build_graph("dispatcher", cache_dir=None)


def test_the_root_holds_what_users_import_by_name_and_what_every_package_may_import() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == ROOT


def test_no_module_imports_itself_by_way_of_others() -> None:
    TopologicalSorter({each: GRAPH.find_modules_directly_imported_by(each) for each in GRAPH.modules}).prepare()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_its_docstring_allows(package: str) -> None:
    said = ast.get_docstring(ast.parse((PACKAGE / package / "__init__.py").read_text(encoding="utf-8"))) or ""
    [allowed] = re.findall(r"^May import: ([\w, ]+|nothing)\.$", said.replace(",\n", ", "), re.MULTILINE)
    modules = {f"dispatcher.{package}", *GRAPH.find_descendants(f"dispatcher.{package}")}
    imported = {found.split(".")[1] for each in modules for found in GRAPH.find_modules_directly_imported_by(each)}
    assert imported - {package} <= set(allowed.split(", "))
