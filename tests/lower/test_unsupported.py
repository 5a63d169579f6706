"""What cannot be lowered is reported all at once, with places and reasons."""

from __future__ import annotations

import pytest

from relume.base.errors import UnsupportedError
from relume.base.targets import AVX2
from relume.graph.text import parse_module
from relume.lower import lower
from relume.ops import OPS

MANY = """
func @main(%x : f32[N,4], %i : bf16[4,4], %h : f16[4,4]) states(%s : f32[K]) {
  %q = softmax(%x, axis=1)   // net.onnx:Softmax_1
  %y = relu(%q)
  %m = matmul(%i, %i)
  %r = reduce_sum(%h, axes=[0], keep=false)   // net.onnx:Sum_2
  return %y, %m, %r states(%s)
}
"""


def test_every_node_is_listed() -> None:
    fn = parse_module(MANY, OPS).main
    with pytest.raises(UnsupportedError) as error:
        lower(fn, AVX2)
    numbers = "f32, f64, i64, i32, i16, i8, u64, u32, u16, u8"
    assert error.value.nodes == (
        ("%s", "parameter", "no input has the extent K as an axis of its own"),
        ("net.onnx:Softmax_1", "softmax", "no kernel for it yet"),
        ("%m", "matmul", f"no kernel does this for bf16, only for {numbers}"),
        ("net.onnx:Sum_2", "reduce_sum", f"no kernel does this for f16, only for {numbers}"),
    )
    assert "4 nodes cannot be compiled" in str(error.value)
