"""A run that is interrupted between two state writes leaves its storage untouched, or torn with a clear error."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from test_memory_api import TRAINING, data

import relume
from relume import Context, Executable, LimitError, RunError, Storage
from relume.base import abi
from relume.base.targets import Target
from relume.codegen import support
from relume.runtime.context import DETAIL1

COUNTDOWN = f"""going:
  %count.at = getelementptr i8, ptr %ctx, i64 {abi.FIELD["detail1"]}
  %count = load i64, ptr %count.at, align 8
  %less = sub i64 %count, 1
  store i64 %less, ptr %count.at, align 8
  %hit = icmp eq i64 %less, 0
  br i1 %hit, label %halt, label %alive
alive:
"""
"""Stops the run at the n-th poll, where n stands in the context's `detail1` before the run."""


@pytest.fixture(params=[0, 1])
def exe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Executable:
    """The training program, with a countdown in every poll."""
    emit = support.emit

    def counting(target: Target) -> str:
        text = emit(target)
        assert text.count("going:\n") == 1
        return text.replace("going:\n", COUNTDOWN)

    monkeypatch.setattr(support, "emit", counting)
    return relume.compile(relume.parse(TRAINING), optimize=request.param, threads=1, cache=False)


def stopped_at_every_poll(exe: Executable, inputs: dict[str, np.ndarray]) -> Iterator[tuple[dict, Storage, bool]]:
    """For each poll of a run: the memory behind the storage, the storage, and whether the run came to its end."""
    poll, ended = 0, False
    while not ended:
        poll += 1
        memory = {"w": data(4, 3, seed=1), "b": data(3, seed=2)}
        storage, context = Storage.borrow(memory), Context()
        context.frame[DETAIL1] = poll
        try:
            exe.run(inputs, states=storage, context=context)
            ended = True
        except LimitError:
            pass
        yield memory, storage, ended


def test_a_run_that_is_stopped_anywhere_leaves_its_storage_whole_or_torn(exe: Executable) -> None:
    before = {"w": data(4, 3, seed=1), "b": data(3, seed=2)}
    inputs = {"x": data(5, 4, seed=3), "g": data(5, 3, seed=4)}
    seen = set()
    for memory, storage, ended in stopped_at_every_poll(exe["train"], inputs):
        changed = frozenset(name for name in memory if (memory[name] != before[name]).any())
        seen.add(changed)
        assert storage.torn is not ended
        if ended:
            assert changed == {"w", "b"} and storage.version == 1
            continue
        for use in (
            lambda storage=storage: storage["b"],
            lambda storage=storage: exe.run({"x": inputs["x"]}, states=storage),
            storage.fork,
        ):
            with pytest.raises(RunError, match=r"torn(.|\n)*ended early(.|\n)*storage\.reset"):
                use()
        storage.reset(before)
        exe["train"].run(inputs, states=storage)
        assert not storage.torn
    assert {"w"} in seen, "the test has stopped a run between the two writes"


def test_a_run_that_only_reads_is_stopped_anywhere_and_tears_nothing(exe: Executable) -> None:
    stops = 0
    for memory, storage, ended in stopped_at_every_poll(exe, {"x": data(5, 4, seed=3)}):
        stops += not ended
        assert not storage.torn and storage.version == 0
        np.testing.assert_array_equal(storage["w"], memory["w"])
    assert stops >= 2
