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

TABLES = """
func @tables(%i : i64[3], %j : i64[3], %x : f32[3,2]) states(%p : f32[6,2], %q : f32[6,2], %h : f32[6,2]) {
  %old = state_read(%p)
  %minus = neg(%old)
  %h1 = state_write(%h, %minus)
  %p1 = scatter_add(%p, %i, %x)
  %now = state_read(%p1)
  %rows = gather(%now, %i, axis=0)
  %q1 = scatter_update(%q, %j, %rows)
  return %rows as "rows" states(%p1, %q1, %h1)
}
"""
"""A write of a whole state, an update of another, and one more that needs what the update before has made."""

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
    return relume.compile(relume.parse(TRAINING + TABLES), optimize=request.param, threads=1, cache=False)


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


def test_a_run_that_is_stopped_before_its_first_write_leaves_its_storage_whole_and_later_torn(exe: Executable) -> None:
    before = {"w": data(4, 3, seed=1), "b": data(3, seed=2)}
    inputs = {"x": data(5, 4, seed=3), "g": data(5, 3, seed=4)}
    whole = after = 0
    seen = set()
    for memory, storage, ended in stopped_at_every_poll(exe["train"], inputs):
        changed = frozenset(name for name in memory if (memory[name] != before[name]).any())
        seen.add(changed)
        if ended:
            assert changed == {"w", "b"} and storage.version == 1 and not storage.torn
        elif not storage.torn:
            assert not changed and storage.version == 0 and not after, "nothing is whole again after the first write"
            whole += 1
            np.testing.assert_array_equal(storage["b"], before["b"])
            exe["train"].run(inputs, states=storage)
            assert storage.version == 1
        else:
            assert storage.version == 1
            after += 1
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
    # Two kernels write states: a poll before the second, and one in each; all others come before the first write.
    assert after <= 3 and whole >= 4


def test_every_index_is_checked_before_the_first_write(exe: Executable) -> None:
    tables = exe["tables"]
    before = {"p": data(6, 2, seed=5), "q": data(6, 2, seed=6), "h": data(6, 2, seed=7)}
    good = {"i": np.array([0, 5, 0]), "j": np.array([2, -1, 2]), "x": data(3, 2)}
    for wrong in ({"i": np.array([0, 6, 0])}, {"j": np.array([0, 0, -7])}):
        storage = Storage(before)
        for _ in range(2):
            with pytest.raises(RunError, match=r"index is out of range: (6|-7)"):
                tables.run(good | wrong, states=storage, context=Context())
            assert storage.version == 0 and not storage.torn
        for name, array in before.items():
            np.testing.assert_array_equal(storage[name], array)
        tables.run(good, states=storage, context=Context())
        assert storage.version == 1 and (storage["h"] == -before["p"]).all() and (storage["q"] != before["q"]).any()


def test_a_run_that_only_reads_is_stopped_anywhere_and_tears_nothing(exe: Executable) -> None:
    stops = 0
    for memory, storage, ended in stopped_at_every_poll(exe, {"x": data(5, 4, seed=3)}):
        stops += not ended
        assert not storage.torn and storage.version == 0
        np.testing.assert_array_equal(storage["w"], memory["w"])
    assert stops >= 2
