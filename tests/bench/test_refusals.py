"""A candidate that is wrong, unfinished, destructive or remembers cannot win."""

import concurrent.futures
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashgp.bench import Candidate, answers, compare
from flashgp.bench.comparison import late_reason

X = torch.linspace(0.5, 2.0, 12, dtype=torch.float64).reshape(4, 3)
Y = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64)
A = X @ X.T + 2.0 * torch.eye(4, dtype=torch.float64)
TOLERANCE = 1e-9


class LazyTensor(torch.Tensor):
    """A tensor whose value need not exist yet."""


class Collective(torch.Tensor):
    """As torch's AsyncCollectiveTensor: numbers come when it is waited for."""

    def wait(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


class Handle:
    """As torch.distributed's Work."""

    def wait(self) -> None: ...


def gram(x: torch.Tensor) -> torch.Tensor:
    return x @ x.T


def escaped(x: torch.Tensor) -> torch.Tensor:
    kept: list[torch.Tensor] = []
    torch.func.vmap(lambda row: kept.append(row) or row)(x)
    return kept[0]


def later(x: torch.Tensor) -> Any:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(gram, x)


async def _coroutine(x: torch.Tensor) -> torch.Tensor:
    return gram(x)


def coroutine(x: torch.Tensor) -> Any:
    made = _coroutine(x)
    made.close()  # nobody will wait for it
    return made


def verdict(
    function: Callable[..., Any], *inputs: Any, reference: Callable[..., Any] = gram, **options: Any
) -> Candidate:
    settings = {"tolerance": TOLERANCE, "repeats": 3, **options}
    return compare({"it": function}, inputs or (X,), reference=reference, **settings)["it"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda x: lambda: gram(x), "returned a function"),
        (lambda x: (row for row in gram(x)), "returned a generator"),
        (lambda x: map(torch.neg, gram(x)), "returned map"),
        (lambda x: gram(x).numpy(), "returned numpy.ndarray"),
        (lambda x: 1.0, "returned float"),
        (lambda x: None, "returned None"),
        (lambda x: gram(x).as_subclass(LazyTensor), "a subclass of Tensor"),
        (lambda x: gram(x).to("meta"), "without data"),
        (lambda x: gram(x).to_sparse(), "layout torch.sparse_coo"),
        (lambda x: (gram(x), gram(x).to_sparse()), r"returned at output\[1\] a tensor of layout"),
        pytest.param(
            lambda x: torch._nested_tensor_from_tensor_list([gram(x)]),
            "that is nested",
            marks=pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
        ),
        (lambda x: escaped(x), "of a transform that has ended"),
        (lambda x: gram(x).to(torch.complex128).mH, "conjugation or negation is still to do"),
        (lambda x: torch._neg_view(gram(x)), "conjugation or negation is still to do"),
        (lambda x: later(x), "Future, an asynchronous result"),
        (lambda x: torch.futures.Future(), "Future, an asynchronous result"),
        (lambda x: (0, coroutine(x)), r"returned int at output\[0\]"),
        (lambda x: [coroutine(x)], r"coroutine, an asynchronous result \(wait for it inside the call\) at output"),
        (lambda x: Handle(), "Handle, an asynchronous result"),
        (lambda x: gram(x).as_subclass(Collective), "Collective, a subclass of Tensor, an asynchronous result"),
        (lambda x: gram(x)[:2], r"returned shape \(2, 4\), the reference has \(4, 4\)"),
        (lambda x: gram(x)[None], "returned shape"),
        (lambda x: gram(x).long(), "returned dtype torch.int64"),
        (lambda x: gram(x).to(torch.complex128), "returned dtype torch.complex128"),
        (lambda x: gram(x).fill_(torch.nan), "16 values that are NaN"),
        (lambda x: gram(x).log().mul(torch.inf), "NaN or infinite"),
        (lambda x: gram(x) + 1e-5, "gave a wrong answer: error"),
        (lambda x: gram(x).flip(0), "wrong answer"),
        (lambda x: (gram(x), gram(x)), r"returned tensors at output\[0\], output\[1\], the reference at the top"),
        (lambda x: (), "returned tensors at nowhere"),
        (lambda x: {"K": gram(x)}, "returned tensors at"),
        (lambda x: x @ x, "raised RuntimeError: "),
        (lambda: 0, "raised TypeError: "),
    ],
)
def test_what_is_no_answer_is_refused_with_the_reason(answer: Callable[..., Any], reason: str) -> None:
    candidate = verdict(answer)
    assert not candidate.accepted
    assert candidate.reason is not None
    with pytest.raises(ValueError, match=reason):
        raise ValueError(candidate.reason)
    assert (candidate.seconds, candidate.spread, candidate.peak_bytes, candidate.error) == (None,) * 4


@pytest.mark.parametrize("container", [tuple, list, lambda parts: dict(zip("ab", parts, strict=True))])
def test_every_tensor_of_a_nested_answer_is_judged(container: Callable[[Any], Any]) -> None:
    def both(x: torch.Tensor) -> Any:
        return container([gram(x), x.argmax(0)])

    assert verdict(both, reference=both).accepted
    wrong_index = verdict(lambda x: container([gram(x), x.argmax(0) + 1]), reference=both)
    assert wrong_index.reason is not None
    assert "3 of 3 values differ" in wrong_index.reason
    wrong_value = verdict(lambda x: container([gram(x) * 1.001, x.argmax(0)]), reference=both)
    assert wrong_value.error is None
    assert not wrong_value.accepted


def test_a_refused_candidate_does_not_run_again_and_the_others_do() -> None:
    calls = []
    result = compare(
        {"wrong": lambda x: calls.append(1), "right": gram}, (X,), reference=gram, tolerance=TOLERANCE, repeats=4
    )
    assert len(calls) == 1
    assert len(result["right"].runs) == 4


def test_one_bad_run_is_enough() -> None:
    calls = []

    def wrong_at_last(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return gram(x) * (2.0 if len(calls) == 6 else 1.0)

    candidate = verdict(wrong_at_last, repeats=5)
    assert not candidate.accepted
    assert len(candidate.runs) == 4


# What remembers ------------------------------------------------------------------------------------------------------


def remembering(key: Callable[[torch.Tensor], Any], function: Callable[..., Any] = gram) -> tuple[Any, list[int]]:
    """`function` with a memory of its answers under a key of its first argument, and a list with an entry per hit."""
    memory: dict[Any, Any] = {}
    hits: list[int] = []

    def run(x: torch.Tensor, *rest: torch.Tensor) -> Any:
        at = key(x)
        if at in memory:
            hits.append(1)
        else:
            memory[at] = function(x, *rest)
        return memory[at]

    return run, hits


@pytest.mark.parametrize(
    "key",
    [
        id,
        lambda x: x.data_ptr(),
        lambda x: tuple(x.shape),
        lambda x: tuple(x.flatten().mul(10).round().tolist()),
        lambda x: 0,
    ],
    ids=["identity", "address", "shape", "rounded values", "constant"],
)
@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("tolerance", [1e-12, 1e-6, 1e-3])
def test_a_stale_memory_is_found_out(key: Callable[[torch.Tensor], Any], warmup: int, tolerance: float) -> None:
    run, hits = remembering(key)
    candidate = verdict(run, warmup=warmup, tolerance=tolerance)
    assert hits
    assert not candidate.accepted
    assert "wrong answer" in str(candidate.reason)


def test_a_memory_of_the_last_answer_is_found_out() -> None:
    last: list[torch.Tensor] = []

    def one_behind(x: torch.Tensor) -> torch.Tensor:
        last.append(gram(x))
        return last[-2] if len(last) > 1 else last[-1]

    assert "wrong answer" in str(verdict(one_behind).reason)


@pytest.mark.parametrize(
    "key",
    [lambda x: tuple(x.flatten().tolist()), lambda x: x.numpy().tobytes(), lambda x: float(x[1, 1])],
    ids=["values", "bytes", "one value"],
)
def test_a_memory_keyed_by_values_never_hits(key: Callable[[torch.Tensor], Any]) -> None:
    run, hits = remembering(key)
    result = compare({"it": run, "plain": gram}, (X,), reference=run, tolerance=TOLERANCE, repeats=20)
    # The reference shares the memory, and two candidates run in each round: still no value comes twice.
    assert result["it"].accepted
    in_timed_calls = len(hits) - 21  # the reference follows each of the 21 calls at the same values
    assert in_timed_calls == 0


def test_two_candidates_cannot_share_a_memory() -> None:
    run, hits = remembering(lambda x: x.numpy().tobytes())
    result = compare({"first": run, "second": run}, (X,), reference=gram, tolerance=TOLERANCE, repeats=5)
    assert result["second"].accepted
    assert hits == []


def test_inputs_are_updated_in_place() -> None:
    seen: list[tuple[int, int, torch.Tensor]] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append((id(x), x.data_ptr(), x.clone()))
        return gram(x)

    assert verdict(look, repeats=6).accepted
    assert len({(identity, address) for identity, address, _ in seen}) == 1
    for index, (_, _, values) in enumerate(seen):
        for _, _, others in seen[:index]:
            assert bool((values != others).all()), "every value is new in every run"
        assert float((values / X - 1).abs().max()) < 1e-3, "and close to the caller's"


def test_an_input_updated_in_place_by_its_caller_between_comparisons_is_read_anew() -> None:
    x = X.clone()
    run, _ = remembering(id)
    assert not verdict(run, x).accepted
    x.mul_(3.0)
    means = []
    verdict(lambda x: (means.append(float(x.mean())), gram(x))[1], x)
    assert means == pytest.approx([float(3.0 * X.mean())] * 4, rel=1e-3)


@pytest.mark.parametrize("position", [0, 1])
def test_a_memory_of_part_of_the_work_is_found_out(position: int) -> None:
    memory: list[torch.Tensor] = []

    def solve(A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        parts = [torch.linalg.cholesky(A), b.clone()]
        memory.extend(parts if not memory else [])
        parts[position] = memory[position]
        return torch.cholesky_solve(parts[1][:, None], parts[0])[:, 0]

    candidate = verdict(solve, A, Y, reference=torch.linalg.solve, tolerance=1e-6)
    assert "wrong answer" in str(candidate.reason)


def test_a_memory_of_one_of_two_outputs_is_found_out() -> None:
    def both(x: torch.Tensor) -> Any:
        return x.sum(), 1e6 + x.sin().sum()  # the second moves little

    memory: list[torch.Tensor] = []

    def half(x: torch.Tensor) -> Any:
        memory.append(both(x)[1])
        return x.sum(), memory[0]

    assert "wrong answer" in str(verdict(half, reference=both).reason)


def test_a_value_at_its_optimum_still_moves() -> None:
    # To first order nothing changes at a minimum, and levels of opposite sign give nearly equal values.
    target = X.clone()

    def objective(x: torch.Tensor) -> torch.Tensor:
        return 1.0 + ((x - target) ** 2).sum()

    run, hits = remembering(id, objective)
    candidate = verdict(run, reference=objective, repeats=8)
    assert hits
    assert not candidate.accepted
    assert verdict(objective, reference=objective, repeats=8).accepted


def test_single_precision_inputs_move_by_more_than_their_rounding() -> None:
    run, _ = remembering(id)
    x = X.float()
    reference = lambda x: gram(x.double())  # noqa: E731
    assert not verdict(run, x, reference=reference, tolerance=1e-6).accepted
    assert verdict(gram, x, reference=reference, tolerance=1e-6).accepted
    half = X.half()
    assert verdict(gram, half, reference=reference, tolerance=2e-3).accepted
    run, _ = remembering(id)
    assert not verdict(run, half, reference=reference, tolerance=2e-3).accepted


def test_what_cannot_be_noticed_is_said() -> None:
    result = compare(
        {"it": lambda x, unused: gram(x)},
        (X, Y),
        reference=lambda x, unused: gram(x),
        tolerance=TOLERANCE,
        repeats=2,
    )
    assert [note.split()[0] for note in result.notes] == ["inputs[1]"]
    assert "moves no output" in str(result)
    steps = [entry["relative_step"] for entry in result.settings["inputs"]]
    assert steps == [1e-4, 1e-4], "what is of no use as a proof is varied as little as anything"


def test_a_function_of_the_user_that_moves_too_little_is_no_proof() -> None:
    candidate = verdict(gram, perturb=lambda inputs, generator: inputs)
    assert "cannot be distinguished from one that remembers" in str(candidate.reason)


def test_a_function_of_the_user_varies_what_it_knows() -> None:
    seen = []

    def grid(inputs: Any, generator: torch.Generator) -> Any:
        step = 1.0 + 0.1 * torch.rand((), generator=generator, dtype=torch.float64)
        return (step * inputs[0],)

    def sine(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.diff())
        return x.sin()

    x = torch.arange(5, dtype=torch.float64)
    assert verdict(sine, x, reference=torch.sin, perturb=grid).accepted
    assert all(float(steps.max() - steps.min()) < 1e-12 for steps in seen)
    run, _ = remembering(id, torch.sin)
    assert not verdict(run, x, reference=torch.sin, perturb=grid).accepted


def test_without_perturbation_a_fixed_reference_serves_and_the_result_says_so() -> None:
    run, hits = remembering(id)
    result = compare({"it": run}, (X,), reference=gram(X), tolerance=TOLERANCE, perturb=False)
    assert result["it"].accepted
    assert hits
    assert "would not be noticed" in result.notes[0]


def test_structure_of_inputs_survives() -> None:
    def look(A: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        assert torch.equal(A, A.mT)
        assert bool((torch.linalg.eigvalsh(A) > 0).all())
        assert bool(((x == 0) == (start == 0)).all())
        assert bool((x.sign() == start.sign()).all())
        assert x.stride() == start.stride()
        return A @ x

    start = torch.tensor([[1.0, 0.0, -2.0, 0.0], [0.0, 3.0, 1e-8, -1e8]], dtype=torch.float64).T
    nearly_singular = gram(X) + 1e-10 * torch.eye(4, dtype=torch.float64)
    candidate = verdict(look, nearly_singular, start, reference=torch.matmul)
    assert candidate.accepted, candidate.reason


# What destroys -------------------------------------------------------------------------------------------------------


def in_place(x: torch.Tensor) -> torch.Tensor:
    answer = gram(x)
    x[0, 0] += 1e-15 + abs(float(x[0, 0])) * 1e-15
    return answer


def resized(x: torch.Tensor) -> torch.Tensor:
    answer = gram(x)
    x.resize_(2, 3)
    return answer


def tracked(x: torch.Tensor) -> torch.Tensor:
    return gram(x.requires_grad_(True))


def through_numpy(x: torch.Tensor) -> torch.Tensor:
    answer = gram(x)
    x.numpy()[0, 0] = 0.0
    return answer


@pytest.mark.parametrize("function", [in_place, resized, tracked, through_numpy])
def test_changed_tensors_are_refused(function: Callable[..., Any]) -> None:
    assert str(verdict(function).reason).startswith("mutated its inputs: ")


def test_changed_integers_arrays_and_containers_are_refused() -> None:
    def product(x: Any, codes: Any, array: Any, parts: Any) -> torch.Tensor:
        return gram(x)

    def change_codes(x: Any, codes: Any, array: Any, parts: Any) -> torch.Tensor:
        codes[0] = 9
        return gram(x)

    def change_array(x: Any, codes: Any, array: Any, parts: Any) -> torch.Tensor:
        array[0] = 9
        return gram(x)

    def change_list(x: Any, codes: Any, array: Any, parts: Any) -> torch.Tensor:
        parts.append(x)
        return gram(x)

    inputs = (X, torch.arange(3), Y.numpy().copy(), [Y])
    result = compare(
        {"codes": change_codes, "array": change_array, "list": change_list, "none": product},
        inputs,
        reference=product,
        tolerance=TOLERANCE,
        repeats=2,
    )
    assert [str(candidate.reason).split(":")[0] for candidate in result.candidates[:3]] == ["mutated its inputs"] * 3
    assert result["none"].accepted, "what one candidate destroys, the next one does not see"
    assert len(inputs[3]) == 1


def test_missing_values_are_no_mutation() -> None:
    x = X.clone()
    x[0, 0] = torch.nan
    assert verdict(lambda x: x.nan_to_num(), x, reference=lambda x: x.nan_to_num()).accepted


def test_a_reference_that_destroys_its_inputs_harms_no_candidate() -> None:
    def destructive(x: torch.Tensor) -> torch.Tensor:
        answer = gram(x)
        x.zero_()
        return answer

    assert verdict(gram, reference=destructive).accepted


# What is computed later ----------------------------------------------------------------------------------------------


def test_what_a_thread_still_writes_is_refused() -> None:
    go_on, done = threading.Event(), threading.Event()

    def asynchronous(x: torch.Tensor) -> torch.Tensor:
        answer, right = torch.zeros(4, 4, dtype=torch.float64), gram(x)

        def work() -> None:
            go_on.wait()
            answer.copy_(right)
            done.set()

        threading.Thread(target=work).start()
        return answer

    def reference(x: torch.Tensor) -> torch.Tensor:
        if not calibrating:
            go_on.set()
            done.wait()
        return gram(x)

    calibrating = [True]

    def candidate(x: torch.Tensor) -> torch.Tensor:
        calibrating.clear()
        return asynchronous(x)

    assert "changed its answer after the clock had stopped" in str(verdict(candidate, reference=reference).reason)


def test_numbers_are_judged_as_they_were_when_the_clock_stopped() -> None:
    # What the reference does to a tensor that it shares with a candidate makes no wrong answer right.
    shared: list[torch.Tensor] = []

    def unfinished(x: torch.Tensor) -> torch.Tensor:
        shared.append(torch.zeros(4, 4, dtype=torch.float64))
        return shared[-1]

    def finishing(x: torch.Tensor) -> torch.Tensor:
        for answer in shared:
            answer.copy_(gram(x))
        return gram(x)

    assert not verdict(unfinished, reference=finishing).accepted


def _lazily() -> list[str]:
    """Reasons of a candidate on torch's lazy device, recognised by name and by time, and of the same work at once."""
    torch._C._lazy_ts_backend._init()
    x = torch.randn(200, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 15

    def powers(x: torch.Tensor) -> torch.Tensor:
        product = x
        for _ in range(20):
            product = (product @ x).tanh()
        return product

    def lazily(x: torch.Tensor) -> torch.Tensor:
        return powers(x.to("lazy"))

    named = verdict(lazily, x, reference=powers)
    answers._LAZY_DEVICES = ()  # as for a device nobody has heard of
    late, eager = verdict(lazily, x, reference=powers), verdict(powers, x, reference=powers)
    return [str(found.reason) for found in (named, late, eager)]


@pytest.mark.skipif(not hasattr(torch._C, "_lazy_ts_backend"), reason="this build of torch has no lazy device")
def test_a_device_that_computes_on_reading_is_refused() -> None:
    """By its time where its name is not known, and by its name."""
    # In a process of its own: the device changes the operations of the whole process.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        named, late, eager = pool.apply(_lazily)
    assert late.startswith("computed its answer after the clock had stopped: the call took ")
    assert named.startswith("returned a tensor of device lazy, whose numbers are computed when they are read")
    assert eager == "None"


@pytest.mark.parametrize(
    ("calls", "late", "refused"),
    [
        ([1e-5] * 3, [1e-3] * 3, True),
        ([1e-5] * 3, [1.9e-4] * 3, False),  # a reading is never free
        ([1.0] * 3, [0.09] * 3, False),
        ([1.0] * 3, [0.11] * 3, True),
        ([1e-3] * 5, [0.0, 0.5, 0.0, 0.5, 0.0], False),  # interrupted twice
        ([1e-3] * 2, [0.0, 0.5], False),
        ([], [], False),
    ],
)
def test_how_late_is_too_late(calls: list[float], late: list[float], refused: bool) -> None:
    assert (late_reason(calls, late) is not None) is refused


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a stream of its own, and there is no CUDA")
def test_work_on_another_stream_is_waited_for() -> None:
    x = torch.randn(4096, 4096, device="cuda")
    side = torch.cuda.Stream()

    def aside(x: torch.Tensor) -> torch.Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(20):
                answer = x @ x
        return answer

    def here(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            answer = x @ x
        return answer

    found = compare(
        {"aside": aside, "here": here},
        (x,),
        reference=lambda x: x.double() @ x.double(),
        tolerance=1e-2,
    )
    assert found["aside"].seconds == pytest.approx(found["here"].seconds, rel=0.5)
