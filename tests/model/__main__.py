"""`make model`: the model at every size, then with every bug, as a table."""

import sys
import tempfile
from pathlib import Path

from tests.model.checker import Verdict, check, missing
from tests.model.mutants import ASSUMPTIONS, LARGE, MUTANTS, SMALL


def main() -> int:
    if reason := missing():
        print(f"model: {reason}")
        return 1
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for sizes in (*SMALL, *LARGE):
            verdict = check(Path(folder), sizes, large=sizes in LARGE)
            wrong += bool(verdict.broken) or not verdict.exhausted
            _tell(" ".join(f"{name}={size}" for name, size in sizes.items()), verdict)
        for name, mutant in (MUTANTS | ASSUMPTIONS).items():
            verdict = check(Path(folder), mutant.sizes, name)
            wrong += verdict.broken not in mutant.breaks
            _tell(name, verdict)
    print("model: as it should be" if not wrong else f"model: {wrong} not as they should be")
    return 1 if wrong else 0


def _tell(what: str, verdict: Verdict) -> None:
    print(f"{what:36} {verdict}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
