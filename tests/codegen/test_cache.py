"""Instructions share a function exactly when nothing that shaped it differs; the cache is exact and survives damage."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from native import ADD, SCALE, Run, buffer, chain, constant, program, vector

from relume import codegen
from relume.base import dims
from relume.base.abi import Status
from relume.base.targets import AVX2, AVX512
from relume.codegen import Cache, CacheWarning, artifacts, keys, llvm
from relume.codegen.cache import Entry
from relume.codegen.keys import Read
from relume.program.types import Instr, Program, Space
from relume.runtime.artifact import Artifact

TWOS, THREES = np.full(8, 2, np.float32), np.full(8, 3, np.float32)
RAMP, OTHER_RAMP = np.arange(8, dtype=np.float32), np.arange(8, dtype=np.float32)[::-1].copy()


def scales(*factors: np.ndarray) -> Program:
    """One output per factor: x * factor."""
    x = buffer("x", Space.INPUT, 8)
    instrs = [
        Instr(
            index,
            SCALE,
            (
                vector("in", x),
                vector("in", constant(f"c{index}", factor, index)),
                vector("out", buffer(f"y{index}", Space.OUTPUT, 8, index)),
            ),
        )
        for index, factor in enumerate(factors)
    ]
    return program(instrs)


def kernels_of(artifact: Artifact) -> list[str]:
    return [name for name in artifact.image.exports if name.startswith(("relume_scale", "relume_add"))]


def check(artifact: Artifact, *factors: np.ndarray) -> None:
    run = Run(artifact, [RAMP + 1])
    assert run.run() == Status.OK
    for output, factor in zip(run.outputs, factors):
        assert np.array_equal(output, (RAMP + 1) * factor)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


# --- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factors", "functions"),
    [
        ((TWOS, THREES), 2),
        ((THREES, TWOS), 2),
        ((TWOS, TWOS), 1),
        ((RAMP, OTHER_RAMP), 1),
        ((TWOS, RAMP, OTHER_RAMP, THREES, TWOS), 3),
    ],
)
def test_constants_that_shaped_the_code_split_it_and_others_do_not(
    factors: tuple[np.ndarray, ...], functions: int, cache: Cache
) -> None:
    for _ in range(2):  # from LLVM, from the cache
        artifact = codegen.build(scales(*factors), AVX2, cache=cache)
        assert len(kernels_of(artifact)) == functions
        check(artifact, *factors)


@pytest.mark.parametrize("order", [(TWOS, THREES, RAMP), (RAMP, THREES, TWOS)])
def test_a_collision_of_digests_changes_nothing(
    order: tuple[np.ndarray, ...], cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys.digests, "of_text", lambda *parts: "c0111de" * 4)
    monkeypatch.setattr(keys, "digest_of", lambda *parts: "c0111de" * 4)
    for _ in range(2):
        artifact = codegen.build(scales(*order), AVX2, cache=cache)
        assert len(kernels_of(artifact)) == 3
        check(artifact, *order)
    for factor in order:
        check(codegen.build(scales(factor), AVX2, cache=cache), factor)
    check(codegen.build(scales(*order[::-1]), AVX2, cache=cache), *order[::-1])


def test_another_constant_of_the_same_shape_reuses_the_whole_image(cache: Cache) -> None:
    codegen.build(scales(RAMP), AVX2, cache=cache)
    before = llvm.calls
    check(codegen.build(scales(OTHER_RAMP), AVX2, cache=cache), OTHER_RAMP)
    assert llvm.calls == before
    check(codegen.build(scales(TWOS), AVX2, cache=cache), TWOS)
    assert llvm.calls == before + 2, "the kernel, and the driver that names it"


def test_symbols_are_stable_and_in_the_image(cache: Cache) -> None:
    first = codegen.build(scales(TWOS, RAMP), AVX2, cache=None)
    second = codegen.build(scales(RAMP, TWOS), AVX2, cache=cache)
    assert kernels_of(first) == kernels_of(second)
    assert all(name in codegen.emit_llvm(scales(TWOS, RAMP), AVX2) for name in kernels_of(first))


def test_parameters_that_print_alike_differ() -> None:
    (instr,) = scales(RAMP).instrs
    structures = set()
    for value in (1, 1.0, True, "1", -0.0, 0.0):
        changed = replace(instr, params={"p": value})
        spec, _ = changed.specialise()
        structures.add(keys.kernel_of(changed, spec, AVX2).structure)
    assert len(structures) == 6


def test_a_view_of_a_constant_is_what_is_read() -> None:
    half = constant("half", np.array([1, 5, 1, 5, 1, 5, 7, 7], np.float32))

    def answer(offset: object, extent: object, stride: object) -> str | None:
        x, y = buffer("x", Space.INPUT, extent), buffer("y", Space.OUTPUT, extent)
        operands = (vector("in", x), vector("in", half, offset, extent, stride), vector("out", y))
        instr = Instr(0, SCALE, operands)
        return keys.kernel_of(instr, instr.specialise()[0], AVX2).answer(Read(0, 1, "splat", ""))

    def value(number: float) -> str:
        return np.float32(number).tobytes().hex()

    n = dims.symbol("N")
    assert answer(0, 8, 1) == ""
    assert answer(6, 2, 1) == value(7)
    assert answer(1, 3, 2) == value(5)
    assert answer(4, 3, -2) == value(1)
    assert answer(3, n, 0) == value(5), "a broadcast of one element"
    assert answer(n, 2, 1) is None, "not known now"


def test_targets_do_not_share(cache: Cache) -> None:
    codegen.build(scales(RAMP), AVX2, cache=cache)
    before = llvm.calls
    codegen.build(scales(RAMP), AVX512, cache=cache)
    assert llvm.calls == before + 3


def test_two_definitions_of_one_name_do_not_share(cache: Cache) -> None:
    other = replace(ADD, emit=lambda spec, target, constants, symbol: ADD.emit(spec, target, constants, symbol))
    (instr,) = chain(8, 1).instrs
    first = codegen.build(program([instr]), AVX2, cache=cache)
    second = codegen.build(program([replace(instr, kernel=other)]), AVX2, cache=cache)
    assert kernels_of(first) != kernels_of(second)


# --- the cache ------------------------------------------------------------------------------------------------------


def test_a_cached_compile_calls_no_llvm_and_gives_the_same_bytes(cache: Cache) -> None:
    n = dims.symbol("N")
    first = codegen.build(chain(n, 3), AVX2, cache=cache)
    before, stats = llvm.calls, replace(cache.stats)
    second = codegen.build(chain(n, 3), AVX2, cache=cache)
    assert llvm.calls == before
    assert first.image == second.image == codegen.build(chain(n, 3), AVX2, cache=None).image
    assert (cache.stats.hits, cache.stats.misses) == (stats.hits + 1, stats.misses), "one look-up: the image"


def test_a_cached_compile_does_not_even_import_llvm(cache: Cache) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from native import chain
from relume import codegen
from relume.base.targets import AVX2
cache = codegen.Cache(Path({str(cache.directory)!r}))
codegen.build(chain(50, 3), AVX2, cache=cache)
print("llvmlite" in sys.modules, cache.stats.hits, cache.stats.misses)
"""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs == ["True 0 4\n", "False 1 0\n"]


def entries(cache: Cache) -> list[Path]:
    return sorted(path for path in cache.directory.rglob("*") if path.is_file())


def _truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _flip(content: bytes) -> bytes:
    return content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]


@pytest.mark.parametrize("damage", [_truncate, _flip, lambda content: b"", lambda content: b"x" * 5])
def test_a_damaged_entry_is_reported_and_built_anew(cache: Cache, damage: object) -> None:
    good = codegen.build(scales(TWOS, RAMP), AVX2, cache=cache)
    paths = entries(cache)
    for path in paths:
        path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.warns(CacheWarning, match="is damaged"):
        again = codegen.build(scales(TWOS, RAMP), AVX2, cache=cache)
    assert again.image == good.image
    assert cache.stats.rebuilt == len(paths) == 5
    assert entries(cache) == paths
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert codegen.build(scales(TWOS, RAMP), AVX2, cache=cache).image == good.image


def test_an_intact_entry_with_a_senseless_image_is_thrown_away(cache: Cache) -> None:
    good = codegen.build(chain(8, 1), AVX2, cache=cache)
    for path in entries(cache):
        entry = cache._load(path)
        assert entry is not None
        if entry.key.startswith("image"):
            cache.store(path.name.split("-")[0], Entry(entry.key, entry.reads, b"\5\0\0\0{}[]x"))
    with pytest.warns(CacheWarning, match="is damaged"):
        assert codegen.build(chain(8, 1), AVX2, cache=cache).image == good.image


def test_a_directory_that_cannot_be_written_is_reported_once_and_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    cache = Cache(tmp_path / "file" / "cache")
    with pytest.warns(CacheWarning) as caught:
        codegen.build(chain(8, 2), AVX2, cache=cache)
        artifact = codegen.build(chain(8, 2), AVX2, cache=cache)
    run = Run(artifact, [RAMP])
    assert run.run() == Status.OK
    complaints = [str(warning.message).partition(" cannot be ")[2].split()[0] for warning in caught]
    assert sorted(complaints) == ["read", "written"]


def test_a_read_only_directory_still_serves(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    codegen.build(chain(8, 2), AVX2, cache=cache)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)  # Permissions do not stop root.
    before = llvm.calls
    codegen.build(chain(8, 2), AVX2, cache=cache)
    assert llvm.calls == before
    with pytest.warns(CacheWarning, match="cannot be written"):
        codegen.build(chain(9, 2), AVX2, cache=cache)


@pytest.mark.parametrize("moment", ["write", "replace"])
def test_an_interrupted_build_leaves_no_partial_file(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen" if moment == "write" else "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            codegen.build(chain(8, 2), AVX2, cache=cache)
    assert entries(cache) == []
    codegen.build(chain(8, 2), AVX2, cache=cache)
    assert len(entries(cache)) == 4


def test_a_failed_build_keeps_nothing_of_what_failed(cache: Cache) -> None:
    bad = replace(ADD, emit=lambda spec, target, constants, symbol: f"define i32 @{symbol}() {{ nonsense }}")
    (instr,) = chain(8, 1).instrs
    for _ in range(2):
        with pytest.raises(codegen.artifacts.CompileError, match=r"cannot read the code of relume_add_"):
            codegen.build(program([replace(instr, kernel=bad)]), AVX2, cache=cache)
    assert entries(cache) == []


def _build_in_child(directory: Path, extent: int) -> bytes:
    return codegen.build(chain(extent, 3), AVX2, cache=Cache(directory)).image.code


def test_processes_share_a_directory(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        images = pool.starmap(_build_in_child, [(tmp_path, extent) for extent in (16, 32, 16, 32, 16, 32)])
    assert images == [codegen.build(chain(extent, 3), AVX2, cache=None).image.code for extent in (16, 32)] * 3
    assert not list(tmp_path.rglob("*.part"))


def test_the_default_directory_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RELUME_CACHE_DIR", str(tmp_path))
    assert codegen.default_cache().directory == tmp_path
    monkeypatch.delenv("RELUME_CACHE_DIR")
    assert codegen.default_cache().directory.name == "relume"


def test_reads_of_a_call_that_is_not_there_do_not_replay() -> None:
    assert artifacts._answer([], Read(0, 0, "splat", "")) is None
