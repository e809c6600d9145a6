"""A candidate that is wrong, unfinished, destructive or remembers cannot win."""

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashgp.bench import Candidate, compare
from flashgp.bench.comparison import late_reason

X = torch.linspace(0.5, 2.0, 12, dtype=torch.float64).reshape(4, 3)
Y = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64)
A = X @ X.T + 2.0 * torch.eye(4, dtype=torch.float64)
TOLERANCE = 1e-9


class LazyTensor(torch.Tensor):
    """A tensor whose value need not exist yet."""


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
        (lambda x: (row for row in gram(x)), "returned a generator"),
        (lambda x: gram(x).as_subclass(LazyTensor), "a subclass of Tensor"),
        (lambda x: gram(x).to("meta"), "without data"),
        (lambda x: gram(x).to_sparse(), "layout torch.sparse_coo"),
        pytest.param(
            lambda x: torch._nested_tensor_from_tensor_list([gram(x)]),
            "that is nested",
            marks=pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
        ),
        (lambda x: escaped(x), "of a transform that has ended"),
        (lambda x: gram(x).to(torch.complex128).mH, "conjugation or negation is still to do"),
        (lambda x: [coroutine(x)], r"coroutine, an asynchronous result \(wait for it inside the call\) at output"),
        (lambda x: gram(x)[:2], r"returned shape \(2, 4\), the reference has \(4, 4\)"),
        (lambda x: gram(x).long(), "returned dtype torch.int64"),
        (lambda x: {"K": gram(x)}, "returned tensors at"),
    ],
)
def test_what_is_no_answer_is_refused_with_the_reason(answer: Callable[..., Any], reason: str) -> None:
    candidate = verdict(answer)
    assert not candidate.accepted
    assert candidate.reason is not None
    with pytest.raises(ValueError, match=reason):
        raise ValueError(candidate.reason)
    assert (candidate.seconds, candidate.spread, candidate.peak_bytes, candidate.error) == (None,) * 4


def test_a_refused_candidate_does_not_run_again_and_the_others_do() -> None:
    calls = []
    result = compare(
        {"wrong": lambda x: calls.append(1), "right": gram}, (X,), reference=gram, tolerance=TOLERANCE, repeats=4
    )
    assert len(calls) == 1
    assert len(result["right"].runs) == 4


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


@pytest.mark.parametrize(
    ("calls", "late", "refused"),
    [
        ([1e-5] * 3, [1e-3] * 3, True),
        ([1.0] * 3, [0.11] * 3, True),
        ([], [], False),
    ],
)
def test_how_late_is_too_late(calls: list[float], late: list[float], refused: bool) -> None:
    assert (late_reason(calls, late) is not None) is refused
