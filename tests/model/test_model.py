"""The protocol in a model checker: right, it keeps its promises in every order of its steps; each bug breaks one."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.model.checker import MODEL, check, missing
from tests.model.mutants import ASSUMPTIONS, MUTANTS, SMALL

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.mark.parametrize("sizes", SMALL, ids=str)
def test_every_order_of_the_protocol_keeps_every_promise(tmp_path: Path, sizes: Mapping[str, int]) -> None:
    verdict = check(tmp_path, sizes)
    print(verdict)
    assert verdict.broken == ""
    assert verdict.exhausted
    if sizes["CHANGES"] == 2:  # the second is a delete
        # All but the ends of the processes that serve for ever: else promises could be kept because nothing happens.
        assert set(verdict.unreached) <= {"-end-"}


@pytest.mark.parametrize("name", [*MUTANTS, *ASSUMPTIONS])
def test_a_bug_in_the_protocol_breaks_a_promise(tmp_path: Path, name: str) -> None:
    mutant = (MUTANTS | ASSUMPTIONS)[name]
    verdict = check(tmp_path, mutant.sizes, name)
    print(f"{name}: {verdict}")
    assert verdict.broken in mutant.breaks


def test_every_switch_of_the_model_is_tried() -> None:
    lines = [line.split() for line in MODEL.read_text().splitlines() if line.startswith(("#if", "#elif"))]
    switches = {line[-1].removeprefix("defined(").rstrip(")") for line in lines}
    assert switches - {"ROUNDS", "CHANGES", "FAULTS", "TICKS"} == {*MUTANTS, *ASSUMPTIONS}
