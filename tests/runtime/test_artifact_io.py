"""`.rlx` files: what is saved runs again, byte for byte the same file, and damage is always an error, never a crash."""

from __future__ import annotations

import dataclasses
import os
import struct
import subprocess
import sys
from pathlib import Path

import machine_code
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_code import M, N

from relume.base import dims, dtypes
from relume.base.errors import ModelError, RelumeError, UnsupportedError
from relume.runtime import Executable, load_executable, save_executable
from relume.runtime.artifact import Allocation, Artifact, Port
from relume.runtime.artifact_io import load_artifacts


def rich() -> Artifact:
    """An artifact with something in every field."""
    return dataclasses.replace(
        machine_code.copy(),
        name="riche été",
        inputs=(Port("x.0", dtypes.bf16, (N,)), Port("k", dtypes.bool_, (M, 3))),
        states=(Port("s", dtypes.i8, (dims.ceildiv(N * M, 2), 4)),),
        constants=(
            np.arange(6, dtype=np.float32).reshape(2, 3),
            np.asfortranarray(np.arange(6).reshape(2, 3)),
            np.array(7, np.uint8),
            np.zeros((0, 5), np.float16),
            np.arange(3).astype(ml_dtypes.bfloat16),
        ),
        dims=(N, dims.select(N, M), dims.minimum(N, 4) - 9),
        allocations=(Allocation("t", N * M * 4, 0, 1), Allocation("u", 64, 1, 3)),
        offsets=None,
        instructions={3: "net.onnx:b", 1: "net.onnx:a"},
        extents=(N + M - 2,),
    )


def same(a: Artifact, b: Artifact) -> bool:
    def plain(artifact: Artifact) -> dict[str, object]:
        fields = {field.name: getattr(artifact, field.name) for field in dataclasses.fields(artifact)}
        constants = [(c.dtype, c.shape, np.ascontiguousarray(c).tobytes()) for c in artifact.constants]
        return fields | {"constants": constants}

    return plain(a) == plain(b)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("rlx") / "a.rlx"
    save_executable(machine_code.affine(2.0), path)
    return path.read_bytes()


def test_every_field_survives(tmp_path: Path) -> None:
    save_executable(rich(), tmp_path / "a.rlx")
    (loaded,) = load_artifacts(tmp_path / "a.rlx")
    assert same(loaded, rich())
    for constant in loaded.constants:
        assert not constant.size or (constant.ctypes.data % 64 == 0 and not constant.flags.writeable)


def test_a_loaded_executable_runs_from_the_mapped_file(tmp_path: Path) -> None:
    save_executable(Executable(machine_code.affine(2.0), threads=1), tmp_path / "a.rlx")
    exe = load_executable(tmp_path / "a.rlx", threads=1)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(exe(x), 3 * x)
    assert exe._constants[0] is exe.artifact.constants[0]


def test_all_functions_of_a_module_are_saved(tmp_path: Path) -> None:
    other = Executable(dataclasses.replace(machine_code.spin(), name="other"), threads=1)
    save_executable(Executable(machine_code.affine(), threads=1).joined([other]), tmp_path / "a.rlx")
    exe = load_executable(str(tmp_path / "a.rlx"), threads=1)
    assert [function.name for function in exe.functions] == ["main", "other"]
    assert exe["other"](np.zeros(1, np.float32)) == 0


def test_it_runs_in_a_process_that_has_no_compiler(tmp_path: Path) -> None:
    save_executable(machine_code.affine(2.0), tmp_path / "a.rlx")
    code = (
        "import sys; sys.modules['llvmlite'] = None; sys.modules['onnx'] = None\n"
        "import numpy as np, relume\n"
        "print(relume.load_executable(sys.argv[1])(np.ones((1, 2), np.float32)))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.rlx")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[[3. 3.]]\n"


def test_equal_artifacts_give_equal_bytes(tmp_path: Path) -> None:
    save_executable(rich(), tmp_path / "a.rlx")
    save_executable(load_artifacts(tmp_path / "a.rlx")[0], tmp_path / "b.rlx")
    assert (tmp_path / "a.rlx").read_bytes() == (tmp_path / "b.rlx").read_bytes()
    turned = dataclasses.replace(rich(), instructions=dict(reversed(rich().instructions.items())))
    save_executable(turned, tmp_path / "b.rlx")
    assert (tmp_path / "a.rlx").read_bytes() == (tmp_path / "b.rlx").read_bytes()


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.rlx"
    save_executable(machine_code.affine(2.0), path)
    exe = load_executable(path, threads=1)
    save_executable(machine_code.affine(9.0), path)
    assert os.listdir(tmp_path) == ["a.rlx"]
    x = np.ones((1, 1), np.float32)
    assert (exe(x), load_executable(path, threads=1)(x)) == (3, 10)


def load_bytes(data: bytes, folder: Path) -> Executable:
    path = folder / "x.rlx"
    path.write_bytes(data)
    return load_executable(path, threads=1)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_flipped_byte_is_noticed(
    saved: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    # Past the head of 64 bytes everything counts; in the head, all that is not padding.
    where = data.draw(st.one_of(st.integers(0, 47), st.integers(64, len(saved) - 1)))
    broken = bytearray(saved)
    broken[where] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RelumeError):
        load_bytes(bytes(broken), tmp_path_factory.getbasetemp())


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_cut_is_noticed(saved: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    length = data.draw(st.one_of(st.integers(0, 100), st.integers(0, len(saved) - 1)))
    with pytest.raises(ModelError):
        load_bytes(saved[:length], tmp_path_factory.getbasetemp())


def test_each_kind_of_damage_is_told_apart(saved: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a compiled model"):
        load_bytes(b"\x08\x07" + saved, tmp_path)
    with pytest.raises(ModelError, match=r"has .* bytes and should have"):
        load_bytes(saved + b"\0", tmp_path)
    with pytest.raises(ModelError, match="checksum"):
        load_bytes(saved[:-1] + b"\1", tmp_path)
    with pytest.raises(ModelError, match="cut off"):
        load_bytes(saved[:20], tmp_path)
    with pytest.raises(UnsupportedError, match=r"another version(.|\n)*ABI 99"):
        load_bytes(saved[:12] + struct.pack("<I", 99) + saved[16:], tmp_path)


def test_code_for_another_machine_is_refused(tmp_path: Path) -> None:
    save_executable(dataclasses.replace(machine_code.affine(), target="x86-64-from-the-future"), tmp_path / "a.rlx")
    with pytest.raises(UnsupportedError, match="cannot run code made for"):
        load_executable(tmp_path / "a.rlx")


@pytest.mark.parametrize("name", ["none.rlx", ".", "empty.rlx"])
def test_files_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.rlx").touch()
    with pytest.raises(ModelError, match="cannot read"):
        load_executable(tmp_path / name)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot write"):
        save_executable(machine_code.affine(), tmp_path / "no" / "a.rlx")
    with pytest.raises(ModelError, match="cannot write"):
        save_executable(machine_code.affine(), tmp_path)
