"""Checks the types of all Python samples, as ``mypy --strict`` of a reader would: `python -m tests.docs.typed_samples`.

A fault is named as line N of a file that is called like the page and has the sample on its lines.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.docs.samples import PAGES, ROOT, samples


def main() -> int:
    """Whether mypy found faults."""
    with TemporaryDirectory() as folder:
        for sample in (each for page in PAGES for each in samples(page) if each.language == "python"):
            name = re.sub(r"\W", "_", sample.place)
            (Path(folder) / f"{name}.py").write_text("\n" * sample.line + sample.text, encoding="utf-8")
        command = [sys.executable, "-m", "mypy", "--no-error-summary", folder]
        return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
