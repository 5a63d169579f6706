"""Norms and softmax over rows: fused or not, the bits are the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import relume
from relume.base import dims
from relume.codegen import Cache
from relume.runtime import Executable

HEADS = """
func @main(%x : f32[N,H,T,T], %mask : f32[N,1,1,T]) {
  %scaled = div(%x, @root)
  %masked = add(%scaled, %mask)
  %y = softmax(%masked, axis=3)
  return %y
}
const @root : f32[] = 5.5
"""
NORM = """
func @main(%x : f32[N,T,24], %r : f32[N,T,24]) {
  %s = add(%x, %r)
  %y = layer_norm(%s, @scale, @bias, axes=[2], epsilon=1e-5)
  %z = mul(%y, %r)
  return %z, %s
}
const @scale : f32[24] = random(1)
const @bias : f32[24] = random(2)
"""
PLANES = """
func @main(%x : f32[N,3,H,T]) {
  %m = reduce_mean(%x, axes=[2,3], keep=true)
  %c = sub(%x, %m)
  %q = mul(%c, %c)
  %v = reduce_mean(%q, axes=[2,3], keep=true)
  %s = sqrt(%v)
  %d = div(%c, %s)
  %w = mul(%d, @scale)
  return %w
}
const @scale : f32[3,1,1] = random(3)
"""
ATTENTION = """
func @main(%q : f32[N,H,T,8], %k : f32[N,H,S,8], %v : f32[N,1,S,20], %mask : f32[N,1,1,S]) {
  %t = transpose(%k, perm=[0,1,3,2])
  %x = matmul(%q, %t)
  %scaled = div(%x, @root)
  %masked = add(%scaled, %mask)
  %p = softmax(%masked, axis=3)
  %y = matmul(%p, %v)
  return %y
}
const @root : f32[] = 2.75
"""
SIMPLE_ATTENTION = """
func @main(%q : f64[T,3], %k : f64[3,S], %v : f64[S,5]) {
  %x = matmul(%q, %k)
  %n = mul(%x, %x)
  %s = reduce_sum(%n, axes=[1], keep=true)
  %p = div(%x, %s)
  %y = matmul(%p, %v)
  return %y
}
"""
TURNED = """
func @main(%x : f32[N,T,H]) {
  %t = transpose(%x, perm=[0,2,1])
  %y = softmax(%t, axis=2)
  %n = reduce_sum(%t, axes=[2], keep=false)
  return %y, %n
}
"""
TEXTS = {
    "heads": HEADS,
    "norm": NORM,
    "planes": PLANES,
    "turned": TURNED,
    "attention": ATTENTION,
    "simple attention": SIMPLE_ATTENTION,
}

EXTENTS = {"N": st.integers(1, 3), "H": st.integers(1, 5), "T": st.integers(1, 99), "S": st.integers(1, 40)}
BINDINGS = st.fixed_dictionaries(EXTENTS)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Executable]]:
    """A function in single kernels, fused, and fused on two threads; each compiled once."""
    cache = Cache(Path(tmp_path_factory.mktemp("kernels")))

    @functools.cache
    def compile_all(text: str) -> list[Executable]:
        ways = ((0, 1), (1, 1), (1, 2))
        return [
            relume.compile(relume.parse(text), optimize=level, threads=threads, cache=cache) for level, threads in ways
        ]

    return compile_all


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@given(binding=BINDINGS)
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fused_rows_have_the_bits_of_single_kernels(
    compiled: Callable[[str], list[Executable]], text: str, binding: dict[str, int]
) -> None:
    executables = compiled(text)
    random = np.random.default_rng(sum(binding.values()))
    inputs = {
        port.name: random.standard_normal([dims.evaluate(dim, binding) for dim in port.dims]).astype(port.dtype.numpy)
        for port in executables[0].inputs
    }
    runs = [exe.run(inputs) for exe in executables]
    for name, want in runs[0].items():
        assert all(run[name].tobytes() == want.tobytes() for run in runs)
