"""Reads the files behind `--input NAME=FILE`: arrays as they are, pictures as the input wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from relume.base.dims import Dim
from relume.base.dtypes import DType
from relume.base.errors import InputError
from relume.cli.console import UsageError

VALUE_HELP = "NAME=FILE: a .npy array that fixes an input whose elements decide extents"

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


def read(given: Sequence[str], wanted: Mapping[str, tuple[DType, tuple[Dim, ...]]]) -> dict[str, np.ndarray]:
    """The array for each input. `wanted` gives dtype and dims by name.

    An entry without `NAME=` is for the only input. Raises `UsageError` on an entry that names nothing, `InputError`
    on a file that cannot be read.
    """
    arrays: dict[str, np.ndarray] = {}
    for entry in given:
        name, equals, file = entry.partition("=")
        if not equals:
            if len(wanted) != 1:
                raise UsageError(f"--input {entry}: this model has {len(wanted)} inputs, write NAME=FILE")
            name, file = next(iter(wanted)), entry
        if name not in wanted:
            raise UsageError(f"--input {entry}: there is no input {name!r}, only {', '.join(wanted) or 'none'}")
        if name in arrays:
            raise UsageError(f"--input {entry}: {name} is given twice")
        arrays[name] = _read_file(Path(file), name, *wanted[name])
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise UsageError(f"no file for {', '.join(missing)}: add --input {missing[0]}=FILE (.npy or a picture)")
    return arrays


def fixed(given: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of `--value NAME=FILE`. Raises `UsageError`, `InputError` as `read`."""
    arrays: dict[str, np.ndarray] = {}
    for entry in given:
        name, equals, file = entry.partition("=")
        if not equals or name in arrays:
            raise UsageError(f"--value {entry}: write NAME=FILE, each name once")
        arrays[name] = _load(Path(file), name)
    return arrays


def _read_file(path: Path, name: str, dtype: DType, dims: tuple[Dim, ...]) -> np.ndarray:
    if path.suffix.lower() not in PICTURES:
        return _load(path, name)
    try:
        return _picture(path, name, dtype, dims)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise InputError(f"cannot read {path} for the input {name}", got=error, hint="give a picture") from None


def _load(path: Path, name: str) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise InputError(
            f"cannot read {path} for the input {name}", got=error, hint="give a .npy file or a picture"
        ) from None
    if not isinstance(array, np.ndarray):
        raise InputError(
            f"{path} holds several arrays", expected="one .npy array", hint=f"save the one for {name} alone"
        )
    return array


def _picture(path: Path, name: str, dtype: DType, dims: tuple[Dim, ...]) -> np.ndarray:
    """A picture as [1,C,H,W]: C decides between grey and RGB, known H and W resize it; floats are 0..1."""
    from PIL import Image

    channels = dims[1] if len(dims) == 4 else None
    if channels not in (1, 3):
        raise InputError(
            f"the input {name} is no picture",
            expected="[N,1,H,W] or [N,3,H,W] for a picture file",
            got=f"[{','.join(map(str, dims))}]",
            hint="give a .npy file, prepared as the model wants it",
        )
    with Image.open(path) as opened:
        picture = opened.convert("L" if channels == 1 else "RGB")
    height, width = (dim if isinstance(dim, int) else size for dim, size in zip(dims[2:], picture.size[::-1]))
    if (width, height) != picture.size:
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture).reshape(height, width, channels).transpose(2, 0, 1)[None]
    scaled = pixels / 255 if dtype.is_float else pixels
    return np.ascontiguousarray(scaled.astype(dtype.numpy))
