"""The runtime under code that the compiler made: threads, shapes, files, states and errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import relume
from relume import Executable, Storage

NET = relume.parse(
    """
    func @main(%x : f32[N,3,H,W]) {
      %h = conv(%x, @w, strides=[2,2], pads=[1,1,1,1], dilations=[1,1], groups=1)
      %r = relu(%h)
      %m = max_pool(%r, window=[3,3], strides=[1,1], pads=[0,0,0,0], dilations=[1,1], ceil=false, blocked=false)
      %g = reduce_mean(%m, axes=[2,3], keep=false)
      %y = matmul(%g, @v)
      return %y as "y", %m as "features"
    }
    const @w : f32[16,3,3,3] = random(1)
    const @v : f32[16,10] = random(2)
    """
)
COUNTER = relume.parse(
    """
    func @main(%x : f32[4]) states(%s : f32[4]) {
      %old = state_read(%s)
      %new = add(%old, %x)
      %t = state_write(%s, %new)
      return %new as "y" states(%t)
    }
    """
)


def image(n: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((n, 3, size, size + 1), np.float32)


@pytest.fixture(scope="module")
def net() -> Executable:
    return relume.compile(NET, threads=2, cache=False)


def test_eight_threads_and_changing_shapes_give_the_bits_of_one_run_after_the_other(net: Executable) -> None:
    jobs = [image(1 + seed % 3, 16 + 2 * (seed % 5), seed) for seed in range(40)]
    alone = relume.compile(NET, threads=1, cache=False)
    wanted = [[array.tobytes() for array in alone(x)] for x in jobs]
    with ThreadPoolExecutor(8) as workers:
        outputs = list(workers.map(lambda x: net(x), jobs * 3))
    assert [[array.tobytes() for array in output] for output in outputs] == wanted * 3


def test_a_saved_model_gives_the_same_bits(net: Executable, tmp_path: Path) -> None:
    relume.save(net, tmp_path / "net.rlx")
    loaded = relume.load_executable(tmp_path / "net.rlx", threads=2)
    for x in (image(1, 16), image(2, 31)):
        assert [y.tobytes() for y in loaded(x)] == [y.tobytes() for y in net(x)]
    assert repr(loaded) == repr(net)


def test_an_image_too_small_for_the_network_is_an_input_error(net: Executable) -> None:
    with pytest.raises(relume.InputError, match="too small"):
        net(np.zeros((1, 3, 2, 8), np.float32))
    assert net(image(1, 8))[0].shape == (1, 10)


def test_no_images_at_all(net: Executable) -> None:
    y, features = net(image(0, 16))
    assert y.shape == (0, 10) and features.shape == (0, 16, 6, 7)


def test_a_compiled_state_lives_in_the_callers_storage() -> None:
    exe, storage = relume.compile(COUNTER, threads=1, cache=False), Storage({"s": np.zeros(4, np.float32)})
    one = np.ones(4, np.float32)
    for step in (1, 2, 3):
        np.testing.assert_array_equal(exe.run({"x": one}, states=storage)["y"], step * one)
    np.testing.assert_array_equal(storage["s"], 3 * one)
