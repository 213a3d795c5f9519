"""``python -m tests.mutants [GLOB ...] [--sample N] [--seed S] [--only PART]`` runs mutants and shows survivors."""

from __future__ import annotations

import argparse
import sys
from pathlib import PurePosixPath

from tests.mutants.harness import Outcome, outcomes
from tests.mutants.rules import RULES
from tests.mutants.score import Score, drawn
from tests.mutants.sources import all_mutants, read


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Break the sources; see who notices.")
    parser.add_argument("globs", nargs="*", metavar="GLOB", help="files to mutate, such as 'lua/include/*.lua'")
    parser.add_argument("--sample", type=int, metavar="N", help="run so many of them")
    parser.add_argument("--seed", default="", metavar="S", help="draw another sample")
    parser.add_argument("--only", default="", metavar="PART", help="run those whose name holds PART")
    parser.add_argument("--rules", action="store_true", help="run the rules in words instead of what is generated")
    parser.add_argument("--list", action="store_true", help="name them and run nothing")
    asked = parser.parse_args()
    globs = asked.globs or ["*"]
    chosen = [
        mutant
        for mutant in ((rule.mutant(read(rule.file)) for rule in RULES) if asked.rules else all_mutants())
        if asked.only in mutant.name and any(PurePosixPath(mutant.file).match(glob) for glob in globs)
    ]
    chosen = drawn(chosen, len(chosen) if asked.sample is None else asked.sample, asked.seed)
    if asked.list:
        say(*(mutant.name for mutant in chosen))
        return 0
    score = Score()
    for mutant, outcome in outcomes(score.without_equivalents(chosen)):
        score.add(outcome)
        if outcome is not Outcome.CAUGHT:
            say(f"{mutant.name}: {outcome.value}", mutant.difference(read(mutant.file)))
    say(str(score))
    return 0 if score.ran and not score.survived else 1


def say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)  # noqa: T201 - what the command says


if __name__ == "__main__":
    sys.exit(main())
