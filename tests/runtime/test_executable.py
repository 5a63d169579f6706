"""Calling compiled code: values, names, layouts, shapes, contexts, states and errors."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import machine_code
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_code import M, N

from relume.base import dims, dtypes
from relume.base.errors import CompileError, InputError, LimitError, RunError, UnsupportedError
from relume.runtime import Context, Executable, Storage, executable
from relume.runtime.artifact import Allocation, Port

F32 = np.float32


@pytest.fixture(scope="module")
def triple() -> Executable:
    return Executable(machine_code.affine(2.0), threads=1)


def ramp(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=F32).reshape(shape)


# --- values and names ---


def test_by_position_by_name_and_by_run(triple: Executable) -> None:
    x = ramp(2, 3)
    for y in (triple(x), triple(x=x), triple.run({"x": x})["y"]):
        assert y.dtype == F32 and y.shape == (2, 3)
        np.testing.assert_array_equal(y, 3 * x)


def test_several_outputs_come_as_a_tuple_and_a_scalar_has_rank_0() -> None:
    exe = Executable(machine_code.copy(), threads=1)
    x = np.arange(5).astype(ml_dtypes.bfloat16)
    y, count = exe(x)
    np.testing.assert_array_equal(y, x)
    assert y.dtype == x.dtype and count.shape == () and count == 5


def test_no_inputs_and_no_outputs() -> None:
    assert Executable(machine_code.empty(), threads=1)() == ()
    assert Executable(machine_code.empty(), threads=1).run({}) == {}


def test_it_says_what_it_is(triple: Executable) -> None:
    assert repr(triple) == "<Executable main(x: f32[N,M]) -> (y: f32[N,M]), x86-64-avx2>"
    assert repr(triple.inputs) == "(<x: f32[N,M]>,)"
    assert (triple.outputs[0].name, triple.outputs[0].dtype, triple.outputs[0].dims) == ("y", dtypes.f32, (N, M))


def test_other_functions_of_the_module_by_name() -> None:
    other = Executable(machine_code.artifact(machine_code.spin().image, name="other"), threads=1)
    exe = Executable(machine_code.affine(), threads=1).joined([other])
    assert exe["other"] is other and exe["main"] is exe and exe.functions == (exe, other)
    with pytest.raises(InputError, match="none"):
        exe["none"]


# --- layouts ---


@pytest.mark.parametrize(
    "make",
    [
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: x[::-1][::-1],
        lambda x: np.flip(np.flip(x, 0).copy(), 0),
        lambda x: x.astype(">f4"),
        lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(F32).reshape(x.shape),
        lambda x: x.view(np.matrix),
        lambda x: memoryview(x),
    ],
    ids=["fortran", "strided", "reversed twice", "negative", "big endian", "unaligned", "subclass", "buffer"],
)
def test_any_layout_of_the_right_values_will_do(triple: Executable, make) -> None:
    x = ramp(4, 6)
    np.testing.assert_array_equal(triple(make(x)), 3 * x)


def test_a_broadcast_view_is_read_as_what_it_shows(triple: Executable) -> None:
    x = np.broadcast_to(ramp(3), (4, 3))
    np.testing.assert_array_equal(triple(x), 3 * x)


def test_inputs_are_never_written_and_may_be_read_only(triple: Executable) -> None:
    x = ramp(2, 3)
    x.flags.writeable = False
    triple(x)
    np.testing.assert_array_equal(x, ramp(2, 3))


def test_an_equal_dtype_that_is_another_object_will_do() -> None:
    exe = Executable(machine_code.fail(), threads=1)
    assert exe(np.zeros(3, np.longlong)).shape == (1,)
    assert exe([0, 0, 0]).shape == (1,)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_zero_extents(triple: Executable, shape: tuple[int, int]) -> None:
    assert triple(np.zeros(shape, F32)).shape == shape


# --- errors before the run ---

X, Y = Port("x", dtypes.f32, (N, 3)), Port("y", dtypes.f32, (M, N + 1))
PAIR = machine_code.empty(inputs=(X, Y))
GOOD = {"x": np.zeros((2, 3), F32), "y": np.zeros((5, 3), F32)}


@pytest.mark.parametrize(
    "arrays, named, words",
    [
        ((), {"x": GOOD["x"]}, ["misses input 'y'", "main(x: f32[N,3], y: f32[M,N+1])", "by position or by name"]),
        ((), {}, ["misses inputs 'x', 'y'"]),
        ((), {**GOOD, "z": 1}, ["no input 'z'"]),
        ((), {"xx": 1}, ["no input 'xx'", "did you mean 'x'?"]),
        ((GOOD["x"],), GOOD, ["'x' is given twice"]),
        ((1, 2, 3), {}, ["takes 2 inputs, got 3"]),
        ((GOOD["x"].astype(np.float64), GOOD["y"]), {}, ["'x' has the wrong dtype", "x: f32[N,3]", "f64[2,3]"]),
        ((GOOD["x"].astype(np.float64), GOOD["y"]), {}, [".astype(np.float32)"]),
        (([[1.0, 2.0, 3.0]], GOOD["y"]), {}, ["f64[1,3] (list)", "np.asarray(..., dtype=np.float32)"]),
        ((np.array(["a"]), GOOD["y"]), {}, ["'x' has the wrong dtype", "pass numbers"]),
        ((None, GOOD["y"]), {}, ["'x' has the wrong dtype", "object"]),
        (([[1], [2, 3]], GOOD["y"]), {}, ["'x' is no array: list", "inhomogeneous"]),
        ((np.zeros(3, F32), GOOD["y"]), {}, ["'x' has rank 1, not 2", "x: f32[N,3]", "f32[3]"]),
        ((F32(1), GOOD["y"]), {}, ["'x' has rank 0, not 2"]),
        ((np.zeros((2, 4), F32), GOOD["y"]), {}, ["'x' is 4 along axis 1, not 3", "f32[2,4]"]),
        ((GOOD["x"], np.zeros((5, 4), F32)), {}, ["'y' is 4 along axis 1, not 3 (N+1)", "y: f32[M,N+1]"]),
    ],
)
def test_an_input_that_does_not_fit_is_named_and_explained(arrays, named, words: list[str]) -> None:
    exe = Executable(PAIR, threads=1)
    with pytest.raises(InputError) as caught:
        exe(*arrays, **named)
    for word in words:
        assert word in str(caught.value)
    assert exe(**GOOD) == ()


def test_inputs_that_disagree_about_a_symbol() -> None:
    exe = Executable(machine_code.empty(inputs=(Port("a", dtypes.f32, (N,)), Port("b", dtypes.i64, (3, N)))), threads=1)
    with pytest.raises(InputError) as caught:
        exe(np.zeros(2, F32), np.zeros((3, 4), np.int64))
    for word in ("'b' disagrees about N", "N = 2 from axis 0 of 'a'", "i64[3,4], so N = 4 on axis 1"):
        assert word in str(caught.value)


def test_run_takes_a_mapping(triple: Executable) -> None:
    with pytest.raises(InputError, match="by name"):
        triple.run(ramp(2, 3))  # type: ignore[arg-type]


def test_the_bf16_hint_names_the_package_that_has_it() -> None:
    with pytest.raises(InputError, match=r"astype\(ml_dtypes\.bfloat16\)"):
        Executable(machine_code.copy(), threads=1)(ramp(2))


@pytest.mark.parametrize(
    "artifact",
    [
        machine_code.empty((Port("x", dtypes.f32, (N,)),), (Port("y", dtypes.f32, (N - 4,)),)),
        machine_code.empty((Port("x", dtypes.f32, (N,)),), extents=(N - 4,)),
        machine_code.empty(
            (Port("x", dtypes.f32, (N,)),), allocations=(Allocation("t", (N - 4) * 4, 0, 0),), offsets=None
        ),
    ],
    ids=["output", "extent", "allocation"],
)
def test_inputs_too_small_for_the_model(artifact) -> None:
    exe = Executable(artifact, threads=1)
    with pytest.raises(InputError, match=r"too small(.|\n)*N = 3(.|\n)*larger"):
        exe(ramp(3))
    exe(ramp(4))


def test_an_extent_beyond_64_bits() -> None:
    ports = (Port("x", dtypes.f32, (N, 0)),)
    exe = Executable(machine_code.empty(ports, dims=(N * N * N,)), threads=1)
    with pytest.raises(InputError, match="too large"):
        exe(np.zeros((1 << 22, 0), F32))
    exe(np.zeros((1 << 20, 0), F32))


def test_a_division_by_a_zero_extent() -> None:
    exe = Executable(machine_code.empty((Port("x", dtypes.f32, (N,)),), dims=(dims.floordiv(8 + N, N),)), threads=1)
    with pytest.raises(InputError, match="division by zero"):
        exe(ramp(0))


@pytest.mark.parametrize("inside", [True, False])
def test_more_memory_than_the_machine_has(inside: bool) -> None:
    size = N * (1 << 50)
    ports = (Port("x", dtypes.f32, (N,)),)
    allocations = (Allocation("t", size, 0, 0),) if inside else ()
    outputs = () if inside else (Port("y", dtypes.f32, (size,)),)
    exe = Executable(machine_code.empty(ports, outputs, allocations=allocations, offsets=None), threads=1)
    with pytest.raises(LimitError, match="more memory than this machine"):
        exe(ramp(1))
    exe(ramp(0))


def test_an_extent_that_no_input_decides_is_found_at_once() -> None:
    with pytest.raises(CompileError, match=r"do not decide(.|\n)*M"):
        Executable(machine_code.empty((Port("x", dtypes.f32, (N, M + 1)),)))


def test_code_for_another_machine_is_refused_before_it_is_mapped() -> None:
    with pytest.raises(UnsupportedError, match="made for armv7"):
        Executable(machine_code.empty(target="armv7"))


@pytest.mark.parametrize("threads", [0, -1, 65])
def test_a_number_of_threads_that_cannot_be(threads: int) -> None:
    with pytest.raises(InputError, match="number of threads"):
        Executable(machine_code.empty(), threads=threads)


# --- errors of the run ---


def test_an_index_error_names_the_node_and_the_index() -> None:
    exe = Executable(machine_code.fail(), threads=1)
    with pytest.raises(RunError) as caught:
        exe(np.array([3, -9, 4]))
    for word in ("index is out of range: -9", "at: net.onnx:Gather_7", "expected: -4 to 3"):
        assert word in str(caught.value)
    with pytest.raises(RunError, match=r"divided by zero(.|\n)*Gather_7"):
        exe(np.array([4, 0, 0]))
    with pytest.raises(RunError, match="status 77"):
        exe(np.array([77, 0, 0]))
    exe(np.array([0, 0, 0]))


# --- outputs, contexts, threads ---


def test_outputs_stay_as_they_were_while_shapes_change(triple: Executable) -> None:
    shapes = [(2, 3), (5, 1), (0, 4), (64, 300), (1, 1), (2, 3)] * 3
    pairs = [(x, triple(x)) for x in (ramp(*shape) + index for index, shape in enumerate(shapes))]
    for x, y in pairs:
        np.testing.assert_array_equal(y, 3 * x)
    arrays = [array for pair in pairs for array in pair]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
    assert all(y.flags.writeable and y.base is None for _, y in pairs)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
@settings(deadline=None, max_examples=30)
def test_any_sequence_of_shapes_gives_what_each_gives_alone(shapes: list[tuple[int, int]]) -> None:
    exe = Executable(machine_code.affine(0.5), threads=1)
    for index, shape in enumerate(shapes):
        x = ramp(*shape) + index
        np.testing.assert_array_equal(exe(x), x * F32(0.5) + x)


def test_plans_are_bounded_and_the_least_recently_used_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    real = executable.make_plan
    monkeypatch.setattr(executable, "make_plan", lambda artifact, shapes: made.append(shapes) or real(artifact, shapes))
    monkeypatch.setattr(executable, "PLANS", 3)
    exe = Executable(machine_code.affine(), threads=1)
    for n in (1, 2, 3, 1, 4, 1, 3):
        exe(ramp(n, 1))
    assert [shapes[0][0] for shapes in made] == [1, 2, 3, 4]
    exe(ramp(2, 1))
    assert len(made) == 5 and len(exe._plans) == 3


@pytest.mark.parametrize("threads", [1, 2])
def test_eight_threads_on_one_executable_agree_with_one(threads: int) -> None:
    exe = Executable(machine_code.affine(2.0), threads=threads)
    barrier = threading.Barrier(8)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        barrier.wait()
        for _ in range(300):
            x = rng.random((int(rng.integers(0, 40)), int(rng.integers(1, 200))), F32)
            np.testing.assert_array_equal(exe(x), x * F32(2) + x)

    with ThreadPoolExecutor(8) as workers:
        for future in [workers.submit(work, seed) for seed in range(8)]:
            future.result()
    assert len(exe._contexts) <= 8


def test_one_context_serves_many_executables_one_run_at_a_time() -> None:
    context = Context()
    exes = [Executable(machine_code.affine(scale), threads=threads) for scale, threads in ((1.0, 1), (2.0, 2))]
    x = ramp(30, 10)
    for _ in range(3):
        for exe, scale in zip(exes, (1, 2)):
            np.testing.assert_array_equal(exe.run({"x": x}, context=context)["y"], x * scale + x)
    assert context.arena_bytes >= x.nbytes and not any(exe._contexts for exe in exes)


def test_a_context_in_use_is_refused() -> None:
    context, exe = Context(), Executable(machine_code.spin(), threads=1)
    started = threading.Event()

    def hold() -> None:
        started.set()
        with pytest.raises(LimitError):
            exe.run({"x": np.ones(1, F32)}, time_limit=0.5, context=context)

    holder = threading.Thread(target=hold)
    holder.start()
    started.wait()
    while not context._busy.locked():
        pass
    with pytest.raises(RunError, match="in use by another run"):
        exe.run({"x": np.zeros(1, F32)}, context=context)
    holder.join()
    assert exe.run({"x": np.zeros(1, F32)}, context=context)["y"] == 0


def test_constants_are_placed_once_and_shared_where_they_are_aligned() -> None:
    exe = Executable(machine_code.affine(5.0), threads=1)
    again = Executable(
        machine_code.artifact(exe.artifact.image, constants=tuple(exe._constants), inputs=exe.inputs), threads=1
    )
    assert exe._constants[0].ctypes.data % 64 == 0
    assert again._constants[0] is exe._constants[0]


# --- states ---


def test_states_are_written_in_place_and_may_be_shared() -> None:
    one, two = (Executable(machine_code.count(), threads=1) for _ in range(2))
    storage = Storage({"w": np.zeros(1, F32)})
    seen = [exe.run({"x": np.ones(1, F32)}, states=storage)["y"][0] for exe in (one, two, one)]
    assert seen == [1, 2, 3] and storage["w"] == 3 and storage.version == 3
    copy = storage["w"]
    copy[0] = 9
    assert storage["w"] == 3
    storage.reset({"w": np.full(1, 7, F32)})
    assert one.run({"x": np.ones(1, F32)}, states=storage)["y"] == 8


def test_states_are_the_callers_and_not_the_executables() -> None:
    exe = Executable(machine_code.count(), threads=1)
    for call in (lambda: exe(np.ones(1, F32)), lambda: exe.run({"x": np.ones(1, F32)})):
        with pytest.raises(InputError, match=r"has states(.|\n)*w: f32\[1\](.|\n)*Storage"):
            call()
    for wrong, words in (
        ({}, "no state 'w'"),
        ({"w": np.zeros(2, F32)}, "'w' does not fit"),
        ({"w": np.zeros(1)}, "'w' does not fit"),
    ):
        with pytest.raises(InputError, match=words):
            exe.run({"x": np.ones(1, F32)}, states=Storage(wrong))


def test_a_state_is_of_a_type_that_models_have() -> None:
    for wrong in (None, "text", 1j):
        with pytest.raises(InputError, match="'w' cannot hold"):
            Storage({"w": wrong})  # type: ignore[dict-item]


def test_a_run_that_ends_early_leaves_its_storage_torn_until_it_is_reset() -> None:
    artifact = machine_code.artifact(
        machine_code.spin(writes=True).image, states=machine_code.count().states, written=("w",)
    )
    exe, storage = Executable(artifact, threads=1), Storage({"w": np.zeros(1, F32)})
    with pytest.raises(LimitError):
        exe.run({"x": np.ones(1, F32)}, time_limit=0.01, states=storage)
    for use in (lambda: storage["w"], lambda: exe.run({"x": np.zeros(1, F32)}, states=storage)):
        with pytest.raises(RunError, match="torn"):
            use()
    with pytest.raises(InputError, match="cannot take"):
        storage.reset({"w": np.zeros(2, F32)})
    storage.reset({"w": np.ones(1, F32)})
    exe.run({"x": np.zeros(1, F32)}, states=storage)


def test_threads_on_one_storage_take_turns() -> None:
    exe, storage = Executable(machine_code.count(), threads=1), Storage({"w": np.zeros(1, F32)})

    def work(_: int) -> list[float]:
        return [float(exe.run({"x": np.ones(1, F32)}, states=storage)["y"][0]) for _ in range(100)]

    with ThreadPoolExecutor(4) as workers:
        seen = [value for values in workers.map(work, range(4)) for value in values]
    assert sorted(seen) == list(range(1, 401)) and storage["w"] == 400
