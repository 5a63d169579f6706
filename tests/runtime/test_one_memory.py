"""Names of one storage that share memory, by whatever way, are one: written, torn, copied and reset as one."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import machine_code
import numpy as np
import pytest

from relume.base import dtypes
from relume.base.errors import InputError, LimitError, RunError
from relume.runtime import Executable, Storage
from relume.runtime.artifact import Port

F32 = np.float32
ONE = {"x": np.ones(1, F32)}


def file(folder: Path, count: int = 8) -> Path:
    path = folder / "shared.bin"
    np.arange(count, dtype=F32).tofile(path)
    return path


def borrowed(folder: Path) -> Storage:
    memory = np.arange(8, dtype=F32)
    return Storage.borrow({"w": memory[:2], "v": memory[1:4], "z": memory[4:]})


def mapped(folder: Path) -> Storage:
    path = file(folder)
    link = folder / "another name"
    link.symlink_to(path)
    return Storage.map({"w": (path, F32, (2,)), "v": (link, "f32", (4,))})


def lent_maps(folder: Path) -> Storage:
    path = file(folder)
    second = np.memmap(path, F32, "r+", offset=4, shape=(3,))[:2]  # An offset that is no page, and a view of it.
    return Storage.borrow({"w": np.memmap(path, F32, "r+", shape=(2,)), "v": second})


def lent_raw_maps(folder: Path) -> Storage:
    path = file(folder)
    maps = []
    for _ in range(2):
        with path.open("r+b") as opened:
            maps.append(np.frombuffer(mmap.mmap(opened.fileno(), 0), F32))
    return Storage.borrow({"w": maps[0], "v": maps[1]})


def lent_memory_of_no_file(folder: Path) -> Storage:
    shared = np.frombuffer(mmap.mmap(-1, 4096), F32)
    shared[:3] = [0, 1, 2]
    return Storage.borrow({"w": shared[:2], "v": shared[1:3]})


def renamed(folder: Path) -> Storage:
    return Storage({"a": np.arange(2, dtype=F32)}).share({"w": "a", "v": "a"})


WAYS: list[Callable[[Path], Storage]] = [borrowed, mapped, lent_maps, lent_raw_maps, lent_memory_of_no_file, renamed]
ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


def writer(storage: Storage, *written: str, stopped: bool = False) -> Executable:
    """Adds x to the first element of the first state; `stopped`: runs until it is stopped, and has begun to write."""
    image = (machine_code.spin(writes=True) if stopped else machine_code.count()).image
    states = tuple(Port(name, dtypes.f32, storage.type_of(name)[1]) for name in written)
    return Executable(machine_code.artifact(image, states=states, written=written), threads=1)


@ways
def test_names_of_one_memory_are_known(way: Callable[[Path], Storage], tmp_path: Path) -> None:
    storage = way(tmp_path)
    assert storage.overlaps == (("w", "v"),)
    assert storage.share(["v", "w"]).overlaps == (("v", "w"),)


@ways
def test_an_early_end_tears_every_name_of_the_memory(way: Callable[[Path], Storage], tmp_path: Path) -> None:
    storage = way(tmp_path)
    for one in (storage.share(["w"]), storage):  # Also where the run does not see the other name.
        with pytest.raises(LimitError):
            writer(storage, "w", stopped=True).run(ONE, time_limit=0.01, states=one)
        for name in "wv":
            with pytest.raises(RunError, match="torn"):
                storage[name]
        assert "z" not in storage or len(storage["z"]) == 4  # It shares nothing, and can be read.
        storage.reset({name: np.zeros(storage.type_of(name)[1], F32) for name in storage})
        assert not storage.torn


@ways
def test_a_fork_keeps_what_is_shared(way: Callable[[Path], Storage], tmp_path: Path) -> None:
    storage = way(tmp_path)
    fork = storage.fork()
    assert fork.overlaps == storage.overlaps
    for name in storage:
        np.testing.assert_array_equal(fork[name], storage[name])
    before = {name: storage[name] for name in storage}
    fork.reset({name: np.full(fork.type_of(name)[1], 7, F32) for name in fork})
    where = int(np.flatnonzero(before["w"] == before["v"][0])[0])  # Where v begins in w.
    shape = storage.type_of("v")[1]
    fork.share({"w": "v"}).reset({"w": np.full(shape, 9, F32)})
    assert fork["w"][where] == 9 and not fork.torn
    for name in storage:
        np.testing.assert_array_equal(storage[name], before[name])


@ways
def test_two_names_of_one_memory_are_not_both_written(way: Callable[[Path], Storage], tmp_path: Path) -> None:
    storage = way(tmp_path)
    with pytest.raises(InputError, match="writes both 'w' and 'v'"):
        writer(storage, "w", "v").run(ONE, states=storage)
    assert storage.version == 0
    before = storage["w"]
    writer(storage, "v").run(ONE, states=storage)
    assert storage.version == 1 and storage["w"].sum() == before.sum() + 1


@ways
def test_a_reset_of_one_memory_to_two_values_is_refused(way: Callable[[Path], Storage], tmp_path: Path) -> None:
    storage = way(tmp_path)
    before = {name: storage[name] for name in storage}
    storage.reset(before)
    for name in ("w", "v"):
        with pytest.raises(InputError, match=r"'w' and 'v' share memory(.|\n)*different values"):
            storage.reset({**before, name: before[name] + 1})
    for name, value in before.items():
        np.testing.assert_array_equal(storage[name], value)
    assert storage.version == 1


def test_a_part_that_is_reset_leaves_the_rest_torn() -> None:
    memory = np.zeros(4, F32)
    storage = Storage.borrow({"w": memory[:2], "v": memory[1:]})
    with pytest.raises(LimitError):
        writer(storage, "w", stopped=True).run(ONE, time_limit=0.01, states=storage.share(["w"]))
    storage.share(["w"]).reset({"w": np.ones(2, F32)})
    np.testing.assert_array_equal(storage["w"], [1, 1])
    with pytest.raises(RunError, match="torn"):
        storage["v"]
    storage.share(["v"]).reset({"v": np.ones(3, F32)})
    assert not storage.torn


def test_a_reset_to_the_storages_own_arrays_takes_copies(tmp_path: Path) -> None:
    memory = {"w": np.array([1, 2], F32), "v": np.array([3, 4], F32)}
    storage = Storage.borrow(memory)
    storage.reset({"w": memory["v"], "v": memory["w"]})
    np.testing.assert_array_equal([memory["w"], memory["v"]], [[3, 4], [1, 2]])
    line = np.arange(4, dtype=F32)
    Storage.borrow({"w": line[:3]}).reset({"w": line[1:]})
    np.testing.assert_array_equal(line, [1, 2, 3, 3])
    path = file(tmp_path)
    mapped = Storage.map({"w": (path, F32, (4,))})
    mapped.reset({"w": np.memmap(path, F32, "r+", shape=(5,))[:0:-1]})
    np.testing.assert_array_equal(mapped["w"], [4, 3, 2, 1])


VIEWS = [lambda m: m, np.asarray, lambda m: np.asarray(m)[:1], lambda m: m[:1].view(np.ndarray)]


@pytest.mark.parametrize("view", VIEWS)
def test_an_input_in_the_file_of_a_written_state_is_copied_first(
    view: Callable[[np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    path = file(tmp_path)
    storage = Storage.map({"w": (path, F32, (2,))})
    x = view(np.memmap(path, F32, "r+", shape=(1,)))
    for held in (storage, Storage.borrow({"w": np.memmap(path, F32, "r+", shape=(2,))})):
        with held.run(["w"], ["w"]) as run:
            (mine,) = run.apart([x])
            held._cells["w"].array[0] = 5
            assert mine[0] == 0
            held._cells["w"].array[0] = 0
        with held.run(["w"], []) as run:
            assert run.apart([x])[0] is x, "nothing is copied for a run that only reads"
    plain = np.zeros(1, F32)
    with storage.run(["w"], ["w"]) as run:
        assert run.apart([plain])[0] is plain


# --- files that become too short ---


def test_a_file_that_was_truncated_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    path = file(tmp_path)
    other = tmp_path / "other.bin"
    np.zeros(2, F32).tofile(other)
    lent = np.memmap(other, F32, "r+", shape=(1,), offset=4)
    for storage, where in ((Storage.map({"w": (path, F32, (2,))}), path), (Storage.borrow({"w": lent}), other)):
        size = where.stat().st_size
        os.truncate(where, 2)
        value = np.ones(storage.type_of("w")[1], F32)
        exe = writer(storage, "w")
        for use in (
            lambda storage=storage, exe=exe: exe.run(ONE, states=storage),
            lambda storage=storage: storage["w"],
            storage.fork,
            lambda storage=storage, value=value: storage.reset({"w": value}),
        ):
            with pytest.raises(RunError, match=r"file of state 'w' is shorter(.|\n)*at least 8 bytes(.|\n)*2 bytes"):
                use()
        assert storage.version == 0 and not storage.torn
        os.truncate(where, size)
        exe.run(ONE, states=storage)
        assert storage.version == 1


def test_a_file_that_is_replaced_or_removed_stays_the_one_that_was_mapped(tmp_path: Path) -> None:
    path = file(tmp_path)
    storage = Storage.map({"w": (path, F32, (2,))})
    (tmp_path / "new").write_bytes(b"")
    (tmp_path / "new").rename(path)
    writer(storage, "w").run(ONE, states=storage)
    path.unlink()
    np.testing.assert_array_equal(storage["w"], [1, 1])
