"""The pictures of the page in docs, of the situation: ``python -m tests.browser.pictures``."""

from __future__ import annotations

import shutil
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tests.browser.conftest import FLAGS, OLGA, PROGRAMS
from tests.browser.situation import situation

DOCS: Final = Path(__file__).parents[2] / "docs"
PICTURES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "page-now.png": ("/", {"viewport": {"width": 1000, "height": 900}}),
    "page-suppressed.png": ("/suppressed", {"viewport": {"width": 1000, "height": 560}}),
    "page-dead-letters.png": ("/dead", {"viewport": {"width": 1000, "height": 600}, "color_scheme": "dark"}),
    "page-phone.png": ("/", {"viewport": {"width": 360, "height": 780}}),
}
"""Of each picture the path, and what the browser is like."""


def main() -> None:
    """Take them all."""
    program = next(filter(None, map(shutil.which, PROGRAMS)))
    with (
        tempfile.TemporaryDirectory() as folder,
        situation(Path(folder)) as serving,
        import_module("playwright.sync_api").sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        for name, (path, options) in PICTURES.items():
            credentials = {"username": "", "password": OLGA}
            page = browser.new_context(base_url=serving.url, http_credentials=credentials, **options).new_page()
            page.goto(path)
            page.screenshot(path=DOCS / name)
        browser.close()


if __name__ == "__main__":
    main()
