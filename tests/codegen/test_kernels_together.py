"""Real kernels in one image: a small network of several, at every number of threads the same bits."""

import numpy as np
import pytest
from native import Mapped, Pool, Run

from relume import codegen
from relume.base import dims, dtypes
from relume.base.abi import Status
from relume.base.dims import Dim
from relume.base.targets import AVX2, AVX512, Target
from relume.kernels import KERNELS
from relume.program.types import Buffer, Instr, Operand, Port, Program, Space, View

N = dims.symbol("N")
K, COLUMNS = 48, 40
PANELS = -(-COLUMNS // 16)


def network(rows: Dim) -> Program:
    """y = tanh(max(x @ w, 0)), and the largest of each row of y."""
    generator = np.random.default_rng(5)
    panels = np.zeros((PANELS, K, 16), np.float32)
    panels[:] = generator.standard_normal(panels.shape)
    x = Buffer("x", Space.INPUT, dtypes.f32, rows * K)
    w = Buffer("w", Space.CONSTANT, dtypes.f32, panels.size, 0, panels)
    h = Buffer("h", Space.ARENA, dtypes.f32, rows * COLUMNS)
    y = Buffer("y", Space.OUTPUT, dtypes.f32, rows * COLUMNS, 0)
    top = Buffer("top", Space.OUTPUT, dtypes.f32, rows, 1)
    xs, ws, hs = (View.whole(b, s) for b, s in ((x, (rows, K)), (w, panels.shape), (h, (rows, COLUMNS))))
    ys, tops = View.whole(y, (rows, COLUMNS)), View.whole(top, (rows,))
    relu = {"body": (("relu", (0,), (), "f32"),), "outs": (1,)}
    tanh = {"body": (("tanh", (0,), (), "f32"),), "outs": (1,)}
    flat_h, flat_y = View.whole(h, (rows * COLUMNS,)), View.whole(y, (rows * COLUMNS,))
    instrs = (
        Instr(0, KERNELS["matmul_packed"], (Operand("in", xs), Operand("in", ws), Operand("out", hs)), relu),
        Instr(1, KERNELS["map"], (Operand("in", flat_h), Operand("out", flat_y)), tanh),
        Instr(2, KERNELS["reduce"], (Operand("in", ys), Operand("out", tops)), {"kind": "max", "kept": 1}),
    )
    return Program(
        "network",
        (Port("x", dtypes.f32, (rows, K), x),),
        (Port("y", dtypes.f32, (rows, COLUMNS), y), Port("top", dtypes.f32, (rows,), top)),
        (),
        (x, w, h, y, top),
        instrs,
        {"h": "h"},
    )


def expected(x: np.ndarray) -> np.ndarray:
    (panels,) = (b.data for b in network(1).constants)
    assert panels is not None
    w = panels.transpose(1, 0, 2).reshape(K, -1)[:, :COLUMNS].astype(np.float64)
    return np.tanh(np.maximum(x @ w, 0))


def test_a_network_with_one_and_more_threads_and_known_and_unknown_rows() -> None:
    symbolic = codegen.build(network(N), AVX2, cache=None)
    for rows in (1, 7, 300):
        x = np.random.default_rng(rows).standard_normal((rows, K)).astype(np.float32)
        results = []
        for artifact in (symbolic, codegen.build(network(rows), AVX2, cache=None)):
            for threads in (1, 2, 3):
                with Pool(Mapped(artifact.image), threads) as pool:
                    run = Run(artifact, [x], pool=pool, N=rows)
                    assert run.run() == Status.OK
                    results.append(run.outputs)
        y, top = results[0]
        assert np.abs(y - expected(x)).max() < 1e-5
        assert np.array_equal(top, y.max(axis=1))
        for other, other_top in results[1:]:
            assert other.tobytes() == y.tobytes()
            assert other_top.tobytes() == top.tobytes()


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda target: target.name)
@pytest.mark.parametrize("rows", [33, N], ids=str)
def test_every_target_links_without_a_symbol_from_outside(target: Target, rows: Dim) -> None:
    image = codegen.build(network(rows), target, cache=None).image
    assert {name for _, name in image.slots} <= {"memset"}, "only the pool clears its memory"
