"""Statements M1 to M7 about memory, as a caller sees them, each with and without optimisation.

M1 clones do not overwrite each other; M2 clones share weights; M3 storage is bound at run time; M4 functions share the
states that they should; M5 passes are pure; M6 comparing a function with its rewrite is a real comparison; M7 contexts
are independent.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import relume
from relume import Context, Executable, InputError, Module, Storage, codegen, pipeline
from relume.base import digests
from relume.graph.types import Function
from relume.runtime.context import ARENA

LEVELS = pytest.mark.parametrize("optimize", [0, 1])
F32 = np.float32

NET = """
func @main(%x : f32[N,64]) {
  %h = matmul(%x, @w) : f32[N,48]
  %b = add(%h, @b) : f32[N,48]
  %r = relu(%b) : f32[N,48]
  %s = softmax(%r, axis=1) : f32[N,48]
  %o = matmul(%s, @v) : f32[N,10]
  return %r as "hidden", %o as "y"
}
const @w : f32[64,48] = random(1)
const @b : f32[48] = random(2)
const @v : f32[48,10] = random(3)
"""

TRAINING = """
func @infer(%x : f32[N,4]) states(%w : f32[4,3], %b : f32[3]) {
  %m = state_read(%w)
  %a = state_read(%b)
  %h = matmul(%x, %m)
  %y = add(%h, %a)
  return %y as "y" states(%w, %b)
}

func @train(%x : f32[N,4], %g : f32[N,3]) states(%w : f32[4,3], %b : f32[3]) {
  %m = state_read(%w)
  %a = state_read(%b)
  %h = matmul(%x, %m)
  %y = add(%h, %a)
  %t = transpose(%x, perm=[1,0])
  %d = matmul(%t, %g)
  %n = sub(%m, %d)
  %s = reduce_sum(%g, axes=[0], keep=false)
  %c = sub(%a, %s)
  %w1 = state_write(%w, %n)
  %b1 = state_write(%b, %c)
  return %y as "y" states(%w1, %b1)
}
"""

MIXED = """
func @main(%x : f32[4]) states(%a : f32[4], %b : f32[4]) {
  %p = state_read(%a)
  %q = state_read(%b)
  %s = add(%p, %q)
  %n = add(%s, %x)
  %a1 = state_write(%a, %n)
  return %s as "seen" states(%a1, %b)
}
"""

SWAP = """
func @main(%x : f32[4]) states(%a : f32[4], %b : f32[4]) {
  %p = state_read(%a)
  %q = state_read(%b)
  %y = add(%x, %p)
  %a1 = state_write(%a, %q)
  %b1 = state_write(%b, %p)
  return %y as "y" states(%a1, %b1)
}
"""


def compiled(model: Module | Function, optimize: int) -> Executable:
    return relume.compile(model, optimize=optimize, threads=1)


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


# --- M1, M2: clones ---


@LEVELS
def test_m1_clone_does_not_overwrite_outputs(optimize: int) -> None:
    module = relume.parse(NET)
    exe = compiled(module.with_function(module.main.clone("clone")), optimize)
    context = Context()
    held = exe.run({"x": data(5, 64)}, context=context)
    before = {name: array.copy() for name, array in held.items()}
    other = exe["clone"].run({"x": data(5, 64, seed=9)}, context=context)
    again = exe["clone"].run({"x": data(5, 64)}, context=context)
    for name, array in before.items():
        np.testing.assert_array_equal(held[name], array)
        np.testing.assert_array_equal(again[name], array)
        assert (other[name] != array).any()
        assert not any(np.shares_memory(held[name], one[name]) for one in (other, again))


@LEVELS
def test_m2_clones_share_weights(optimize: int) -> None:
    module = relume.parse(NET)
    clone = module.main.clone("clone")
    theirs = {constant.name: constant for constant in clone.graph.constants()}
    assert all(theirs[constant.name] is constant for constant in module.main.graph.constants())
    assert {*clone.graph.nodes}.isdisjoint(module.main.graph.nodes)
    exe, apart = compiled(module, optimize), compiled(clone, optimize)
    together = compiled(module.clone().with_function(clone), optimize)
    assert len(exe.artifact.constants) >= 3
    for one in (apart, together, together["clone"]):
        assert [id(array) for array in one.artifact.constants] == [id(array) for array in exe.artifact.constants]


def test_m2_a_clone_of_a_module_equals_it_and_shares_no_node() -> None:
    module = relume.parse(TRAINING)
    clone = module.clone()
    assert clone == module and str(clone) == str(module)
    assert not {*clone.main.graph.nodes} & {*module.main.graph.nodes}


def test_m2_equal_contents_of_other_models_are_one_constant() -> None:
    one, two = (compiled(relume.parse(NET.replace("@main", name)), 1) for name in ("@one", "@two"))
    assert all(a is b for a, b in zip(one.artifact.constants, two.artifact.constants, strict=True))


# --- M3: storage is bound at run time ---


@LEVELS
def test_m3_states_are_bound_to_one_storage_or_to_two(optimize: int) -> None:
    exe = compiled(relume.parse(MIXED), optimize)
    assert exe.artifact.written == ("a",)
    compilations = codegen.llvm_calls()
    a, b, x = data(4, seed=1), data(4, seed=2), data(4, seed=3)
    apart = Storage({"a": a, "b": b})
    np.testing.assert_array_equal(exe.run({"x": x}, states=apart)["seen"], a + b)
    np.testing.assert_array_equal(apart["a"], (a + b) + x)
    np.testing.assert_array_equal(apart["b"], b)
    weights = Storage({"w": a})
    one = weights.share({"a": "w", "b": "w"})
    np.testing.assert_array_equal(exe.run({"x": x}, states=one)["seen"], a + a)
    for name in "ab":
        np.testing.assert_array_equal(one[name], (a + a) + x)
    np.testing.assert_array_equal(weights["w"], one["a"])
    assert codegen.llvm_calls() == compilations


@LEVELS
def test_m3_two_writers_on_one_storage_are_an_input_error(optimize: int) -> None:
    exe = compiled(relume.parse(SWAP), optimize)
    assert exe.artifact.written == ("a", "b")
    a, b = data(4, seed=1), data(4, seed=2)
    memory = np.concatenate([a, b])
    for storage in (
        Storage({"w": a}).share({"a": "w", "b": "w"}),
        Storage.borrow({"a": memory[:4], "b": memory[3:7]}),
    ):
        before = storage["a"]
        with pytest.raises(InputError, match="writes both 'a' and 'b'"):
            exe.run({"x": a}, states=storage)
        np.testing.assert_array_equal(storage["a"], before)
    storage = Storage.borrow({"a": memory[:4], "b": memory[4:]})
    exe.run({"x": a}, states=storage)
    np.testing.assert_array_equal(memory, np.concatenate([b, a]))


@LEVELS
def test_m3_an_input_that_lies_in_a_borrowed_state_is_read_before_the_write(optimize: int) -> None:
    exe = compiled(relume.parse(SWAP), optimize)
    a, b = data(4, seed=1), data(4, seed=2)
    lent = {"a": a.copy(), "b": b.copy()}
    np.testing.assert_array_equal(exe.run({"x": lent["a"]}, states=Storage.borrow(lent))["y"], a + a)


# --- M4: what is trained is seen ---


@LEVELS
def test_m4_inference_sees_what_training_wrote(optimize: int) -> None:
    exe = compiled(relume.parse(TRAINING), optimize)
    assert exe.artifact.written == () and exe["train"].artifact.written == ("w", "b")
    w, b, x, g = data(4, 3, seed=1), data(3, seed=2), data(5, 4, seed=3), data(5, 3, seed=4)
    storage, context = Storage({"w": w, "b": b}), Context()
    fork = storage.fork()
    before = exe.run({"x": x}, states=storage, context=context)["y"]
    kept = before.copy()
    trained = exe["train"].run({"x": x, "g": g}, states=storage, context=context)["y"]
    np.testing.assert_array_equal(trained, before)  # It saw the weights from before.
    after = exe.run({"x": x}, states=storage, context=context)["y"]
    np.testing.assert_array_equal(before, kept)
    np.testing.assert_allclose(storage["w"], w - x.T @ g, rtol=1e-5, atol=1e-5)
    fresh = Storage({"w": storage["w"], "b": storage["b"]})
    np.testing.assert_array_equal(after, exe.run({"x": x}, states=fresh)["y"])
    np.testing.assert_array_equal(exe.run({"x": x}, states=fork)["y"], kept)
    assert (after != before).all()
    assert (storage.version, fork.version) == (1, 0)  # Runs that only read do not count.


# --- M5: passes are pure ---


def digest(fn: Function) -> str:
    return digests.of_text(str(fn), *(constant.digest for constant in fn.graph.constants()))


@LEVELS
@pytest.mark.parametrize("name", pipeline.PASSES)
def test_m5_a_pass_leaves_its_source_as_it_was(name: str, optimize: int) -> None:
    for text, state in ((NET, {}), (TRAINING, {"w": data(4, 3), "b": data(3)})):
        fn = relume.parse(text).main
        before = pipeline.optimize(fn, level=optimize) if name == "fuse" else fn  # Late passes meet their own input.
        inputs = {value.name: data(2, *value.dims[1:]) for value in before.inputs}
        shown, known, meant = str(before), digest(before), relume.evaluate(before, inputs, state)
        after = before.with_graph(pipeline.PASSES[name](before.graph))
        assert (str(before), digest(before)) == (shown, known)
        for key, value in relume.evaluate(before, inputs, state).items():
            np.testing.assert_array_equal(value, meant[key])
        for key, value in relume.evaluate(after, inputs, state).items():
            np.testing.assert_allclose(value, meant[key], rtol=1e-5, atol=1e-6)


# --- M6: comparisons compare two things ---


@LEVELS
def test_m6_a_function_and_its_rewritten_clone_are_compared_apart(optimize: int) -> None:
    fn = relume.parse(NET).main
    rewritten = pipeline.optimize(fn.clone("rewritten"))
    assert str(rewritten) != str(fn).replace("@main", "@rewritten")
    exe = compiled(Module({"main": fn, "rewritten": rewritten}), optimize)
    context, x = Context(), data(7, 64)
    plain = exe.run({"x": x}, context=context)
    other = exe["rewritten"].run({"x": x}, context=context)
    for name in plain:
        assert not np.shares_memory(plain[name], other[name])
        np.testing.assert_allclose(other[name], plain[name], rtol=1e-5, atol=1e-6)
    for corrupted in (plain, other):
        corrupted["y"][3, 4] += 1
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(other["y"], plain["y"], rtol=1e-5, atol=1e-6)
        corrupted["y"][3, 4] -= 1


# --- M7: contexts are independent ---


@LEVELS
def test_m7_eight_threads_in_contexts_of_their_own_equal_serial(optimize: int, capsys: pytest.CaptureFixture) -> None:
    exe = compiled(relume.parse(NET), optimize)
    runs, threads = 10_000, 8
    inputs = [data(1 + seed % 3, 64, seed=seed) for seed in range(16)]
    serial = [exe.run({"x": x})["y"].tobytes() for x in inputs]
    weights = [array.ctypes.data for array in exe.artifact.constants]
    contexts = [Context() for _ in range(threads)]

    def work(number: int) -> int:
        context, wrong = contexts[number], 0
        for index in range(runs):
            which = (index + number) % len(inputs)
            wrong += exe.run({"x": inputs[which]}, context=context)["y"].tobytes() != serial[which]
        return wrong

    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(work, range(threads))) == [0] * threads
    # Weights exist once; each context has its own arena, and no more than its largest plan needs.
    assert [array.ctypes.data for array in exe.artifact.constants] == weights
    arenas = [context.arena_bytes for context in contexts]
    alone = Context()
    for x in inputs:
        exe.run({"x": x}, context=alone)
    assert alone.arena_bytes > 0 and all(size <= 1.25 * alone.arena_bytes for size in arenas)
    assert len({context.frame[ARENA] for context in contexts}) == threads
    held = sum(array.nbytes for array in exe.artifact.constants)
    with capsys.disabled():
        print(f"\nweights {held:,} bytes once, arenas {threads} x {max(arenas):,} bytes ", end="")
