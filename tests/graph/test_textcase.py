"""The harness of the `.rlm` files fails where a case is not as it says."""

from __future__ import annotations

from pathlib import Path

import pytest

import textcase

GOOD = "func @f(%x : f32[2]) {\n  %y = relu(%x)\n  return %y\n}\n"
WRONG = "func @f(%x : f32[2]) {\n  %y = relu(%z)\n  return %y\n}\n"


def outcome(tmp_path: Path, text: str) -> list[tuple[int, str] | None]:
    """For each case None, or the line and the complaint."""
    path = tmp_path / "case.rlm"
    path.write_text(text)
    found: list[tuple[int, str] | None] = []
    for case in textcase.cases_of(path):
        try:
            textcase.check(case)
            found.append(None)
        except textcase.CaseFailure as failure:
            found.append((failure.line, str(failure)))
    return found


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        (f"// RUN: verify\n{GOOD}// CHECK: neg(%x)\n", 1, "neg(%x)"),
        (f"// RUN: verify\n{GOOD}// CHECK-NOT: relu\n", 1, "excluded string"),
        (f"// RUN: verify\n{WRONG}", 3, "%z is not defined"),
        (f"// RUN: verify\n{GOOD.replace('return', '// error: oh' + chr(10) + 'return')}", 4, "there was no error"),
        (f"// RUN: verify\n{WRONG.replace('relu(%z)', 'relu(%z)  // error: type')}", 3, "the error is another one"),
        (f"// RUN: verify\n{WRONG.replace('return %y', 'return %y  // error: not defined')}", 4, "belongs to line 3"),
        (f"// RUN: run\n{GOOD}// run: @f([1,-2]) == [1, -2]\n", 6, "the reference gives"),
        (f"// RUN: run\n{GOOD}// run: @f([1,-2]) raises oh\n", 6, "raises nothing"),
        (f"// RUN: run\n{GOOD}", 1, "expects nothing"),
        (f"// RUN: pass=dce\n{GOOD}", 1, "expects nothing"),
        (f"// RUN: verify\n{GOOD}// run: @f([1,-2]) == [1, 0]\n", 6, "RUN has no `run`"),
        (f"// RUN: pass=dcf\n{GOOD}// CHECK: relu\n", 1, "there is no pass 'dcf'"),
    ],
)
def test_a_false_claim_fails(tmp_path: Path, text: str, line: int, complaint: str) -> None:
    (found,) = outcome(tmp_path, text)
    assert found is not None and found[0] == line and complaint in found[1]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"// RUN: verfy\n{GOOD}", "RUN has no 'verfy'"),
        (f"{GOOD}", "has a RUN line"),
        (f"// RUN: verify\n{GOOD}// Error: oh", "no directive 'Error'"),
        (f"// RUN: verify\n{GOOD}// CHECKS: oh", "no directive 'CHECKS'"),
    ],
)
def test_a_directive_that_does_not_exist_fails_the_file(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(textcase.CaseFailure, match=complaint):
        outcome(tmp_path, text)


def test_cases_are_apart_and_share_the_first_run_line(tmp_path: Path) -> None:
    text = f"// RUN: verify\n{GOOD}// -----\n{WRONG}// -----\n// RUN: run\n{GOOD}// run: @f([1,-2]) == [1, 0]\n"
    first, second, third = outcome(tmp_path, text)
    assert first is None and third is None
    assert second is not None and second[0] == 8


def test_a_text_that_does_not_round_trip_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = textcase.text.print_module
    monkeypatch.setattr(textcase.text, "print_module", lambda m, **how: right(m, **how).replace("relu", "neg"))
    (found,) = outcome(tmp_path, f"// RUN: verify\n{GOOD}")
    assert found is not None and "does not round-trip" in found[1]
