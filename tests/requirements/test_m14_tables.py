"""M14: what an update in place does to a table in a sparse file, read from the kernel's own account of the mapping."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import process
import relume
from relume import Storage
from relume.base.errors import CompileError

ROWS = 1 << 22  # Of 16 floats: 256 MB, and no block on the disk.
INDICES = np.array([0, ROWS - 1, 12_345, 999_999, 12_345, -7, 2_000_003, 3_141_592])  # One of them twice.

STEP = f"""func @step(%i : i64[8], %goal : f32[8,16]) states(%table : f32[{ROWS},16]) {{
  %now = state_read(%table)
  %rows = gather(%now, %i, axis=0)
  %away = sub(%goal, %rows)
  %part = mul(%away, @rate)
  %next = scatter_add(%table, %i, %part)
  return %rows states(%next)
}}
const @rate : f32[1] = [0.5]
"""


@pytest.mark.parametrize("level", [0, 1])
def test_m14_a_step_makes_only_the_pages_of_its_rows_resident_and_dirty(level: int, tmp_path: Path) -> None:
    path = tmp_path / "table"
    with path.open("wb") as file:
        file.truncate(ROWS * 64)
    exe = relume.compile(relume.parse(STEP), optimize=level, threads=2, cache=False)
    storage = Storage.map({"table": (path, np.float32, (ROWS, 16))})
    before = process.mapping(path)
    goal = np.arange(128, dtype=np.float32).reshape(8, 16) + 1
    rows = exe.run({"i": INDICES, "goal": goal}, states=storage)["rows"]
    after = process.mapping(path)
    assert not rows.any()

    distinct = len(set(INDICES % ROWS))
    assert after["Size"] >= ROWS * 64
    assert after["Rss"] - before["Rss"] <= (64 << 10) * distinct + (1 << 20)
    assert 0 < after["Dirty"] <= process.PAGE * distinct

    on_disk = np.memmap(path, np.float32, "r", 0, (ROWS, 16))
    want = np.zeros((8, 16), np.float32)
    for place, index in enumerate(INDICES % ROWS):
        want[list(INDICES % ROWS).index(index)] += goal[place] * np.float32(0.5)
    firsts = np.unique(INDICES % ROWS, return_index=True)[1]
    np.testing.assert_array_equal(on_disk[(INDICES % ROWS)[firsts]], want[firsts])


@pytest.mark.parametrize("level", [0, 1])
def test_m14_where_the_table_would_have_to_be_copied_nothing_compiles_and_the_reader_is_named(level: int) -> None:
    needs_all = STEP.replace("return %rows", "%new = state_read(%next)\n  %change = sub(%new, %now)\n  return %change")
    with pytest.raises(CompileError, match=r"scatter_add updates the state 'table' in place and cannot") as error:
        relume.compile(relume.parse(needs_all), optimize=level, cache=False)
    assert "%change" in str(error.value)
