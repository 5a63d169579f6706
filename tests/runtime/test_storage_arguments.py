"""Arguments of storages and runs that do not fit are `InputError`s that say what was expected, no bare errors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import machine_code
import ml_dtypes
import numpy as np
import pytest

from relume.base import dims, dtypes
from relume.base.errors import InputError, LimitError
from relume.runtime import Context, Executable, Storage
from relume.runtime.artifact import Port

F32 = np.float32
W = np.zeros(2, F32)
N = dims.symbol("N")
OPEN = (Port("w", dtypes.f32, (N, 4)),)


def storage() -> Storage:
    return Storage({"w": W, "v": W})


def hidden() -> np.ndarray:
    return np.ma.masked_array(W, [True, False])


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a list of arrays": (lambda: Storage([W]), r"Storage goes by name(.|\n)*a dict(.|\n)*list(.|\n)*'w': array"),
    "none": (lambda: Storage(None), "Storage goes by name"),
    "a name that is no string": (lambda: Storage({1: W}), r"no string(.|\n)*got: 1"),
    "ragged": (lambda: Storage({"w": [[1.0], [1.0, 2.0]]}), "state 'w' is no array: list"),
    "text": (lambda: Storage({"w": "abc"}), r"cannot hold <U3(.|\n)*f32"),
    "masked": (lambda: Storage({"w": hidden()}), r"masked array(.|\n)*filled"),
    "borrow a list of arrays": (lambda: Storage.borrow([W]), "Storage.borrow goes by name"),
    "borrow masked": (lambda: Storage.borrow({"w": hidden()}), r"masked array(.|\n)*filled"),
    "borrow a number": (lambda: Storage.borrow({"w": F32(1)}), "'w' cannot live in this array"),
    "reset by an array": (lambda: storage().reset(W), r"reset goes by name(.|\n)*ndarray"),
    "reset ragged": (lambda: storage().reset({"w": [[1], [1, 2]], "v": W}), "state 'w' is no array"),
    "reset another dtype": (lambda: storage().reset({"w": [1.0, 2.0], "v": W}), r"expected: f32\[2\]\n  got: f64\[2\]"),
    "reset none": (lambda: storage().reset({}), r"every state a value(.|\n)*w, v(.|\n)*none"),
    "share a string": (lambda: storage().share("w"), r"share takes names(.|\n)*share\(\['w'\]\)"),
    "share a number": (lambda: storage().share(3), "share takes names"),
    "share numbers": (lambda: storage().share([3]), "no string"),
    "share from a list": (lambda: storage().share({"w": ["v"]}), "no state"),
    "share to a number": (lambda: storage().share({3: "w"}), "no string"),
    "get what is not there": (lambda: storage()["q"], r"no state 'q'(.|\n)*expected: w, v"),
    "get by a list": (lambda: storage()[["q"]], "no state"),
    "the type of what is not there": (lambda: storage().type_of("q"), "no state 'q'"),
    "whether what is not there is writable": (lambda: storage().writable("q"), "no state 'q'"),
    "zeros of an executable": (lambda: Storage.zeros(Executable(machine_code.count())), r"zeros\(exe\.states\)"),
    "zeros of names": (lambda: Storage.zeros(["w"]), r"Storage\.zeros\(exe\.states\)"),
    "zeros by a list": (lambda: Storage.zeros(OPEN, [2]), "symbols goes by name"),
    "zeros of a fraction": (lambda: Storage.zeros(OPEN, {"N": 2.5}), r"extent N is none(.|\n)*2\.5"),
    "zeros of a truth value": (lambda: Storage.zeros(OPEN, {"N": True}), "extent N is none"),
    "zeros of less than none": (lambda: Storage.zeros(OPEN, {"N": -1}), "extent N is none"),
    "zeros below none": (lambda: Storage.zeros((Port("w", dtypes.f32, (N - 3,)),), {"N": 2}), r"of state 'w' is none"),
    "zeros by nothing": (lambda: Storage.zeros((Port("w", dtypes.f32, (6 // N,)),), {"N": 0}), "division by zero"),
    "map a list": (lambda: Storage.map([1]), r"Storage.map goes by name(.|\n)*w\.bin"),
    "map a path": (lambda: Storage.map({"w": "w.bin"}), r"'w' is not described(.|\n)*\(path, dtype, shape\)"),
    "map two things": (lambda: Storage.map({"w": ("w.bin", F32)}), "is not described"),
    "map a number": (lambda: Storage.map({"w": (3, F32, (2,))}), "is not described"),
    "map no dtype": (lambda: Storage.map({"w": ("w.bin", "f99", (2,))}), r"cannot hold 'f99'(.|\n)*f32"),
    "map nothing for a dtype": (lambda: Storage.map({"w": ("w.bin", None, (2,))}), "cannot hold None"),
    "map objects": (lambda: Storage.map({"w": ("w.bin", object, (2,))}), "cannot hold object"),
    "map the bytes of another machine": (lambda: Storage.map({"w": ("w.bin", ">f4", (2,))}), "foreign byte order"),
    "map a number for a shape": (lambda: Storage.map({"w": ("w.bin", F32, 2)}), r"shape of state 'w'(.|\n)*\(10, 4\)"),
    "map text for a shape": (lambda: Storage.map({"w": ("w.bin", F32, ("a",))}), "an extent of state 'w' is none"),
    "map less than none": (lambda: Storage.map({"w": ("w.bin", F32, (-1,))}), "an extent of state 'w' is none"),
    "map nowhere": (lambda: Storage.map({"w": ("no\0where", F32, (1,))}), "cannot be mapped"),
    "copy": (lambda: copy.copy(storage()), r"storage\.fork\(\)"),
    "deepcopy": (lambda: copy.deepcopy({"states": storage()}), r"storage\.fork\(\)"),
    "pickle": (lambda: pickle.dumps(storage()), r"storage\.fork\(\)"),
}


@pytest.mark.parametrize(("call", "says"), WRONG.values(), ids=WRONG.keys())
def test_what_does_not_fit_is_refused(call: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        call()


@pytest.mark.parametrize("artifact", [machine_code.count(), machine_code.spin()], ids=["states", "no states"])
def test_a_run_takes_a_storage_and_a_context(artifact: object) -> None:
    exe, x = Executable(artifact, threads=1), {"x": np.zeros(1, F32)}  # type: ignore[arg-type]
    for wrong in (3, {"w": W}, []):
        with pytest.raises(InputError, match=rf"no Storage(.|\n)*got: {type(wrong).__name__}"):
            exe.run(x, states=wrong)  # type: ignore[arg-type]
    for wrong in (7, object(), SimpleNamespace()):
        with pytest.raises(InputError, match=rf"no Context(.|\n)*got: {type(wrong).__name__}"):
            exe.run(x, states=Storage({"w": np.zeros(1, F32)}), context=wrong)  # type: ignore[arg-type]
    exe.run(x, states=Storage({"w": np.zeros(1, F32)}), context=Context())


def test_an_input_is_not_masked_and_not_ragged() -> None:
    exe = Executable(machine_code.spin(), threads=1)
    with pytest.raises(InputError, match=r"input 'x' is a masked array(.|\n)*filled"):
        exe(np.ma.masked_array(np.zeros(1, F32), [True]))
    with pytest.raises(InputError, match="input 'x' is no array"):
        exe([[1.0], [1.0, 2.0]])


@pytest.mark.parametrize("size", [1 << 40, 1 << 61, (1 << 63) - 1])
def test_zeros_that_no_machine_holds_are_a_limit(size: int) -> None:
    for port in (OPEN[0], Port("w", dtypes.f32, (0, N)), Port("w", dtypes.f32, (N, N))):
        with pytest.raises(LimitError, match=r"more memory than this machine has(.|\n)*'w'"):
            Storage.zeros((port,), {"N": size})


def test_what_fits_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(bytes(16))
    for dtype in ("f32", "float32", F32, dtypes.f32, np.dtype("<f4"), "=f4"):
        assert Storage.map({"w": (path, dtype, [np.int64(2), 2])}).type_of("w") == (np.dtype(F32), (2, 2))
    assert Storage.map({"w": [path, "bf16", ()]}).type_of("w") == (np.dtype(ml_dtypes.bfloat16), ())
    assert str(Storage({"w": np.zeros((2, 3), ">i4"), "b": True})) == "Storage(w: i32[2,3], b: bool[])"
    assert len(Storage({})) == 0 and Storage({}).fork().overlaps == ()
    memory = np.zeros((2, 2), F32).view(np.matrix)
    lent = Storage.borrow({"w": memory})
    lent.reset({"w": [[F32(1), F32(2)], [F32(3), F32(4)]]})
    assert memory.sum() == 10 and type(lent["w"]) is np.ndarray
    assert Storage.zeros(iter(OPEN), {"N": np.int32(2), "unused": 1}).type_of("w")[1] == (2, 4)
