"""What depends on states and constants only is computed once for each version of them (`passes.derive`)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import relume
from relume import Executable, InputError, LimitError, RunError, Storage

F32 = np.float32

MODULE = """
func @infer(%x : f32[N,20]) states(%w : f32[20,35], %b : f32[35]) {
  %m = state_read(%w)
  %a = state_read(%b)
  %s = exp(%a)
  %h = matmul(%x, %m)
  %y = mul(%h, %s)
  return %y as "y" states(%w, %b)
}

func @train(%g : f32[20,35]) states(%w : f32[20,35], %b : f32[35]) {
  %m = state_read(%w)
  %n = sub(%m, %g)
  %w1 = state_write(%w, %n)
  return states(%w1, %b)
}

func @nudge(%i : i64[2], %rows : f32[2,35]) states(%w : f32[20,35]) {
  %w1 = scatter_add(%w, %i, %rows)
  return states(%w1)
}
"""


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    return {"w": data(20, 35, seed=seed), "b": data(35, seed=seed + 1)}


@pytest.fixture(scope="module")
def plain() -> Executable:
    """Derives nothing apart."""
    return relume.compile(relume.parse(MODULE), optimize=0, threads=1)


@pytest.fixture
def exe() -> Executable:
    made = relume.compile(relume.parse(MODULE), threads=1)
    assert [port.name for port in made.inputs] == ["x"] and made.artifact.derived is not None
    assert made["train"].artifact.derived is None and made["nudge"].artifact.derived is None
    return made


@pytest.fixture
def derivations(exe: Executable, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that something is derived."""
    count: list[int] = []
    deriver = exe._deriver
    assert deriver is not None
    run = deriver._run

    def counted(*args: object) -> list[np.ndarray]:
        count.append(1)
        return run(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(deriver, "_run", counted)
    return count


X = data(7, 20, seed=99)


def result(exe: Executable, storage: Storage) -> np.ndarray:
    return exe.run({"x": X}, states=storage)["y"]


def wanted(plain: Executable, storage: Storage) -> np.ndarray:
    """The same bits, from an executable that keeps nothing and a storage that nobody knows."""
    return result(plain, Storage({name: storage[name] for name in storage}))


def test_once_for_each_version_and_the_same_bits(exe: Executable, plain: Executable, derivations: list[int]) -> None:
    storage = Storage(arrays())
    expected = wanted(plain, storage)
    for _ in range(3):
        np.testing.assert_array_equal(result(exe, storage), expected)
    assert len(derivations) == 1 and storage.version == 0
    assert storage.derived_bytes == 4 * (3 * 20 * 16 + 35)
    # Other inputs, the same weights.
    assert exe.run({"x": X[:1]}, states=storage)["y"].tobytes() == expected[:1].tobytes()
    assert len(derivations) == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda exe, storage: exe["train"].run({"g": data(20, 35, seed=5)}, states=storage),
        lambda exe, storage: exe["nudge"].run({"i": np.array([3, 3]), "rows": data(2, 35, seed=6)}, states=storage),
        lambda exe, storage: storage.reset(arrays(seed=7)),
        lambda exe, storage: storage.share(["w"]).reset({"w": data(20, 35, seed=8)}),
        lambda exe, storage: exe["nudge"].run(
            {"i": np.array([3, 3]), "rows": data(2, 35, seed=6)}, states=storage.share(["w"])
        ),
    ],
    ids=["state_write", "scatter_add", "reset", "reset of a share", "write through a share"],
)
def test_who_writes_the_states_is_seen(
    exe: Executable, plain: Executable, derivations: list[int], write: Callable[[Executable, Storage], object]
) -> None:
    storage = Storage(arrays())
    before = result(exe, storage)
    for times in (2, 3):
        write(exe, storage)
        assert storage.derived_bytes == 0, "what is out of date takes no memory"
        for _ in range(2):
            np.testing.assert_array_equal(result(exe, storage), wanted(plain, storage))
        assert len(derivations) == times
    assert (result(exe, storage) != before).any()


def test_storages_keep_their_own(exe: Executable, plain: Executable, derivations: list[int]) -> None:
    one, two = Storage(arrays(1)), Storage(arrays(2))
    for _ in range(3):
        for storage in (one, two):
            np.testing.assert_array_equal(result(exe, storage), wanted(plain, storage))
    assert len(derivations) == 2
    fork = one.fork()
    exe["train"].run({"g": data(20, 35, seed=5)}, states=fork)
    for storage in (fork, one, two):
        np.testing.assert_array_equal(result(exe, storage), wanted(plain, storage))
    assert len(derivations) == 3


def test_names_of_one_storage_do_not_mix(exe: Executable, plain: Executable, derivations: list[int]) -> None:
    both = Storage({"w": data(20, 35, seed=1), "v": data(20, 35, seed=2), "b": data(35), "c": data(35, seed=3)})
    names = [{"w": w, "b": b} for w in "wv" for b in "bc"]
    for _ in range(2):
        for renamed in names:
            storage = both.share(renamed)
            np.testing.assert_array_equal(result(exe, storage), wanted(plain, storage))
    assert len(derivations) == len(names)


def test_executables_do_not_mix_and_take_what_is_theirs_along() -> None:
    storage = Storage(arrays())
    twice = MODULE.replace("%s = exp(%a)", "%s = mul(%a, @two)") + "const @two : f32[1] = [2]"
    exe, other = (relume.compile(relume.parse(text), threads=1) for text in (MODULE, twice))
    first, second = result(exe, storage), result(other, storage)
    np.testing.assert_array_equal(result(exe, storage), first)
    np.testing.assert_array_equal(result(other, storage), second)
    held = storage.derived_bytes
    del other
    gc.collect()
    assert storage.derived_bytes == held // 2


def test_memory_that_others_write_unseen_is_read_in_each_run(
    exe: Executable, plain: Executable, derivations: list[int], tmp_path: Path
) -> None:
    mine = arrays()
    (tmp_path / "w").write_bytes(mine["w"].tobytes())
    (tmp_path / "b").write_bytes(mine["b"].tobytes())
    shapes = {"w": (20, 35), "b": (35,)}
    mapped = Storage.map({name: (tmp_path / name, F32, shape) for name, shape in shapes.items()}, writable=False)
    borrowed = Storage.borrow(mine)
    expected = wanted(plain, borrowed)
    for storage in (borrowed, mapped):
        np.testing.assert_array_equal(result(exe, storage), expected)
    mine["w"] += 1
    np.memmap(tmp_path / "w", F32, "r+", 0, (20, 35))[...] += 1
    for storage in (borrowed, mapped):
        np.testing.assert_array_equal(result(exe, storage), wanted(plain, borrowed))
        assert storage.derived_bytes == 0
    assert (result(exe, borrowed) != expected).any() and len(derivations) == 5


def test_a_saved_artifact_derives_too(exe: Executable, tmp_path: Path) -> None:
    relume.save(exe, tmp_path / "m.rlx")
    loaded = relume.load_executable(tmp_path / "m.rlx", threads=1)
    assert loaded.artifact.derived is not None and loaded.artifact.derived.outputs == exe.artifact.derived.outputs  # type: ignore[union-attr]
    storage = Storage(arrays())
    expected = result(exe, storage)
    own = storage.derived_bytes
    for _ in range(2):
        np.testing.assert_array_equal(result(loaded, storage), expected)
    assert storage.derived_bytes == 2 * own
    relume.save(loaded, tmp_path / "again.rlx")
    assert (tmp_path / "again.rlx").read_bytes() == (tmp_path / "m.rlx").read_bytes()


def test_eight_threads_infer_while_one_trains(exe: Executable, plain: Executable) -> None:
    """Each run sees the weights as they are between two steps, with what was derived from those very weights."""
    storage, steps = Storage(arrays()), 30
    gradient = np.full((20, 35), 0.125, F32)
    known = {}
    reference = storage.fork()
    for _ in range(steps + 1):
        known[result(plain, reference).tobytes()] = len(known)
        plain["train"].run({"g": gradient}, states=reference)
    assert len(known) == steps + 1

    def infer(_: int) -> list[int]:
        return [known[result(exe, storage).tobytes()] for _ in range(60)]

    with ThreadPoolExecutor(9) as pool:
        readers = [pool.submit(infer, thread) for thread in range(8)]
        for _ in range(steps):
            exe["train"].run({"g": gradient}, states=storage)
        seen = [reader.result() for reader in readers]
    assert all(sorted(versions) == versions for versions in seen), "nobody goes back to older weights"
    assert known[result(exe, storage).tobytes()] == steps


SLOW = """
func @main(%x : f32[1]) states(%w : f32[600,600]) {
  %m = state_read(%w)
  %a = matmul(%m, %m)
  %b = matmul(%a, %m)
  %c = matmul(%b, %m)
  %s = reduce_sum(%c, axes=[0,1], keep=false)
  %y = add(%x, %s)
  return %y as "y" states(%w)
}
"""


def test_a_derivation_that_is_stopped_leaves_nothing() -> None:
    exe = relume.compile(relume.parse(SLOW), threads=1)
    storage = Storage({"w": np.eye(600, dtype=F32)})
    one = np.ones(1, F32)
    for _ in range(3):
        with pytest.raises(LimitError):
            exe.run({"x": one}, states=storage, time_limit=0.002)
        assert storage.derived_bytes == 0 and not storage.torn
    assert exe.run({"x": one}, states=storage)["y"] == 601
    assert exe.run({"x": one}, states=storage, time_limit=1)["y"] == 601
    assert storage.derived_bytes == 4


FAILING = """
func @main(%x : f32[1]) states(%t : f32[4], %i : i64[1]) {
  %m = state_read(%t)
  %n = state_read(%i)
  %r = gather(%m, %n, axis=0)
  %y = add(%x, %r)
  return %y as "y" states(%t, %i)
}
"""


def test_a_derivation_that_fails_says_where_and_keeps_nothing() -> None:
    exe = relume.compile(relume.parse(FAILING), threads=1)
    assert exe.artifact.derived is not None
    table = np.arange(4, dtype=F32)
    storage, one = Storage({"t": table, "i": np.array([9])}), np.ones(1, F32)
    for _ in range(2):
        with pytest.raises(RunError, match="index is out of range: 9"):
            exe.run({"x": one}, states=storage)
    storage.reset({"t": table, "i": np.array([-1])})
    assert exe.run({"x": one}, states=storage)["y"] == 4


def test_a_torn_storage_refuses_as_before(exe: Executable, plain: Executable) -> None:
    storage = Storage(arrays())
    result(exe, storage)
    with pytest.raises(KeyboardInterrupt), storage.run(["w"], ["w"]) as held:
        held.wrote = True
        held.arrays["w"][3] = 7
        raise KeyboardInterrupt
    with pytest.raises(RunError, match="torn"):
        result(exe, storage)
    assert storage.derived_bytes == 0
    storage.reset(arrays(seed=4))
    np.testing.assert_array_equal(result(exe, storage), wanted(plain, storage))


def test_states_that_do_not_fit_are_refused_before_anything_is_derived(exe: Executable, derivations: list[int]) -> None:
    with pytest.raises(InputError, match="does not fit"):
        result(exe, Storage({"w": data(20, 34), "b": data(34)}))
    assert not derivations


OPEN = """
func @main(%x : f32[N]) states(%h : f32[N], %w : f32[3,1]) {
  %m = state_read(%w)
  %e = exp(%m)
  %o = state_read(%h)
  %s = add(%x, %o)
  %y = mul(%e, %s)
  return %y as "y", %e as "e" states(%h, %w)
}
"""


def test_a_state_of_open_extents_beside_it() -> None:
    """What is derived does not depend on the shapes of a run, and may be an output as well."""
    exe = relume.compile(relume.parse(OPEN), threads=1)
    weights = Storage({"w": np.zeros((3, 1), F32), "two": np.ones(2, F32), "five": np.ones(5, F32)})
    for name, size in (("two", 2), ("five", 5), ("two", 2)):
        got = exe.run({"x": np.ones(size, F32)}, states=weights.share({"w": "w", "h": name}))
        np.testing.assert_array_equal(got["y"], np.full((3, size), 2, F32))
        np.testing.assert_array_equal(got["e"], np.ones((3, 1), F32))
        got["e"][...] = 7  # The caller's own.
    assert weights.derived_bytes == 12


def test_constants_alone_are_derived_beside_states() -> None:
    """What folding leaves to compiled code, for its last bits are a machine's own."""
    text = """
    func @main(%x : f32[2]) states(%w : f32[2]) {
      %e = exp(@c)
      %m = state_read(%w)
      %s = add(%x, %m)
      %y = mul(%s, %e)
      return %y as "y" states(%w)
    }
    const @c : f32[2] = [0, 0]
    """
    exe = relume.compile(relume.parse(text), threads=1)
    assert exe.artifact.derived is not None and not exe.artifact.derived.states
    mine = np.ones(2, F32)
    for storage in (Storage({"w": mine}), Storage.borrow({"w": mine})):
        for _ in range(2):
            np.testing.assert_array_equal(exe.run({"x": mine}, states=storage)["y"], [2, 2])
