"""External data: mapped from inside the model's folder, and from nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_cases import make, run, value

from relume.base.errors import ModelError
from relume.frontends.onnx import load

WEIGHTS = np.arange(4, dtype=np.float32)


def write(folder: Path, location: str, **entries: object) -> Path:
    """A model whose initializer `w` lies in the file `location`."""
    model = make([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [4])], ["y"])
    tensor = TensorProto(name="w", dims=[4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, entry in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(entry))
    model.graph.initializer.append(tensor)
    path = folder / "net.onnx"
    onnx.save(model, path)
    return path


def weight_of(path: Path) -> np.ndarray:
    (constant,) = load(path).main.graph.constants()
    return constant.data


@pytest.mark.parametrize("offset", [0, 8, 4096])
def test_data_inside_the_folder_is_mapped_and_not_copied(tmp_path: Path, offset: int) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(b"\1" * offset + WEIGHTS.tobytes())
    path = write(tmp_path, "sub/w.bin", offset=offset, length=16)
    data = weight_of(path)
    base = data
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap) and not data.flags.writeable
    np.testing.assert_array_equal(run(load(path), [WEIGHTS])[0], 2 * WEIGHTS)


def test_data_at_an_odd_offset_is_right(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\1\2\3" + WEIGHTS.tobytes())
    np.testing.assert_array_equal(weight_of(write(tmp_path, "w.bin", offset=3)), WEIGHTS)


def test_what_onnx_writes_is_read(tmp_path: Path) -> None:
    model = make([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [4])], ["y"], {"w": WEIGHTS})
    onnx.save_model(model, tmp_path / "net.onnx", save_as_external_data=True, location="all.bin", size_threshold=0)
    np.testing.assert_array_equal(weight_of(tmp_path / "net.onnx"), WEIGHTS)


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "sub/../../w.bin", "..\\w.bin", "C:\\w.bin", ""])
def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    inner = tmp_path / "model"
    (inner / "sub").mkdir(parents=True)
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    with pytest.raises(ModelError, match=r"must lie inside the model's folder(.|\n)*net.onnx:initializer 'w'"):
        load(write(inner, location))


def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    inner = tmp_path / "model"
    inner.mkdir()
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    (inner / "w.bin").symlink_to(tmp_path / "w.bin")
    with pytest.raises(ModelError, match="must lie inside the model's folder"):
        load(write(inner, "w.bin"))
    (inner / "up").symlink_to(tmp_path)
    with pytest.raises(ModelError, match="must lie inside the model's folder"):
        load(write(inner, "up/w.bin"))


def test_a_link_that_stays_inside_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.bin").write_bytes(WEIGHTS.tobytes())
    (tmp_path / "w.bin").symlink_to("real.bin")
    np.testing.assert_array_equal(weight_of(write(tmp_path, "w.bin")), WEIGHTS)


@pytest.mark.parametrize(
    ("entries", "part"),
    [
        ({"offset": 4}, "past the end"),
        ({"offset": 2**62}, "past the end"),
        ({"length": 8}, "does not fit"),
        ({"offset": -4}, "not a number"),
        ({"offset": "x"}, "not a number"),
        ({"offset": "9" * 40}, "not a number"),
    ],
)
def test_bytes_that_are_not_there_are_refused(tmp_path: Path, entries: dict, part: str) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    with pytest.raises(ModelError, match=part):
        load(write(tmp_path, "w.bin", **entries))


@pytest.mark.parametrize("location", ["nope.bin", "a\0b", "loop"])
def test_a_missing_file_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ModelError, match="is missing"):
        load(write(tmp_path, location))


def test_a_folder_or_a_pipe_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(ModelError, match="not a regular file"):
        load(write(tmp_path, "d"))


def test_bytes_have_no_folder(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    with pytest.raises(ModelError, match="no folder"):
        load(write(tmp_path, "w.bin").read_bytes())
