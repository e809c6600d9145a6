"""Parts, sums with noise and the SciPy protocol are those of the dense matrix."""

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.operators.linear import DiagonalOperator

F64 = torch.float64
KERNEL = 1.3 * fgp.kernels.Matern(2.5, torch.tensor([0.7, 1.2])) + fgp.kernels.Linear(0.2)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


X, Z = numbers(9, 2), numbers(6, 2, seed=1)


@pytest.mark.parametrize("index", [
    (slice(2, 7), slice(1, 5)),
    (torch.tensor([3, 0, 3]), slice(None)),(slice(0, 0), slice(None)),
])  # fmt: skip
def test_parts(index: tuple[object, object]) -> None:
    operator, dense = KERNEL(X, Z), KERNEL(X, Z).to_dense()
    part = operator[index]
    assert isinstance(part, fgp.operators.CovarianceOperator)
    wanted = dense[index[0]][:, index[1]]
    assert part.shape == wanted.shape
    assert torch.allclose(part.to_dense(), wanted, rtol=0, atol=1e-14)
    right = numbers(wanted.shape[1], 2)
    assert torch.allclose(part @ right, wanted @ right, rtol=0, atol=1e-13)


def test_rows_columns_and_numbers() -> None:
    operator, dense = KERNEL(X, Z), KERNEL(X, Z).to_dense()
    assert torch.allclose(operator[3], dense[3], rtol=0, atol=1e-14)
    assert torch.allclose(operator[-1, 1:4], dense[-1, 1:4], rtol=0, atol=1e-14)
    assert torch.allclose(operator[:, 2], dense[:, 2], rtol=0, atol=1e-14)
    assert torch.allclose(operator[4, 2], dense[4, 2], rtol=0, atol=1e-14)
    keep = torch.tensor([True, False] * 4 + [True])
    assert torch.allclose(operator[keep].to_dense(), dense[keep], rtol=0, atol=1e-14)
    square = KERNEL(X)[2:5, 2:5]
    assert square.symmetric
    assert torch.allclose(square.diagonal(), KERNEL(X).to_dense().diagonal()[2:5])
    with pytest.raises(fgp.ShapeError, match="within 9"):
        operator[9]
    with pytest.raises(fgp.ShapeError, match="one-dimensional"):
        operator[torch.zeros(2, 2, dtype=torch.long)]


INDICES = {
    "a NumPy integer": numpy.int64(3),
    "nothing": [],

"a range": range(0, 5, 2), "NumPy positions": numpy.array([4, -1, 4]),
    "a list of booleans": [True] * 3 + [False] * 6,


    "a backward block": (slice(None, None, -1), slice(None, None, -1)),
}  # fmt: skip


@pytest.mark.parametrize("index", [pytest.param(i, id=name) for name, i in INDICES.items()])
def test_parts_are_those_of_the_matrix(index: object) -> None:
    """Of a covariance, and of one with noise on its diagonal, which a part may cut anywhere."""
    for operator in (KERNEL(X), KERNEL(X).with_noise(torch.arange(1.0, 10.0, dtype=F64))):
        dense = operator.to_dense().detach().numpy()
        left, right = index if isinstance(index, tuple) and len(index) == 2 else (index, slice(None))
        plain = [i[0] if isinstance(i, tuple) else i for i in (left, right)]
        plain = [i if isinstance(i, slice) else numpy.asarray(i) for i in plain]
        plain = [i if isinstance(i, slice) or i.dtype == bool else i.astype(int) for i in plain]
        wanted = torch.from_numpy(dense[plain[0]][..., plain[1]].copy())
        part = operator[index]
        found = part if isinstance(part, torch.Tensor) else part.to_dense()
        assert found.shape == wanted.shape
        assert torch.allclose(found, wanted, rtol=0, atol=1e-14)
        if not isinstance(part, torch.Tensor):
            vectors = numbers(wanted.shape[1], 2)
            assert torch.allclose(part @ vectors, wanted @ vectors, rtol=0, atol=1e-13)
            assert torch.allclose(part.T.to_dense(), wanted.mT, rtol=0, atol=1e-14)


def test_equal_sides_keep_a_part_symmetric() -> None:
    some = [4, 1, 1]
    assert KERNEL(X)[some, some].symmetric
    assert KERNEL(X)[::-2, ::-2].symmetric
    assert not KERNEL(X)[some, [4, 1, 1]].symmetric
    assert not KERNEL(X, Z)[:3, :3].symmetric
    noisy = KERNEL(X).with_noise(0.3)
    for part in (noisy[some, some], noisy[2:8:2, 2:8:2][:2, :2]):
        assert torch.allclose(part.diagonal(), part.to_dense().diagonal(), rtol=0, atol=1e-15)


REFUSED = {
    "three": ((0, 1, 2), fgp.ShapeError, "one or two indices.*got 3"),
    "a boolean": (True, fgp.DomainError, "got True"),



    "floats": ([0.5], fgp.DomainError, "got dtype torch.float"), "texts": (["a"], fgp.DomainError, "got list"),

    "a short mask": (torch.ones(3, dtype=torch.bool), fgp.ShapeError, "mask of 9 entries here, got 3"),


    "too far": ((slice(None), [2, 9]), fgp.ShapeError, "got 9"), "one too far back": (-10, fgp.ShapeError, "got -10"),
    "no step": (slice(None, None, 0), fgp.DomainError, "slice of integers"),

}  # fmt: skip


@pytest.mark.parametrize(("index", "error", "words"), [pytest.param(*r, id=name) for name, r in REFUSED.items()])
def test_what_is_no_index_is_refused(index: object, error: type[Exception], words: str) -> None:
    for operator in (KERNEL(X), KERNEL(X).with_noise(0.1)):
        with pytest.raises(error, match=f"`index` must be.*{words}"):
            operator[index]


def test_batches_of_noise_on_one_matrix() -> None:
    """One dense matrix per member of a batch of variances, with gradients, without, and mapped by torch.func."""
    noise = torch.rand(3, 9, generator=torch.Generator().manual_seed(2), dtype=F64)
    frozen = 1.3 * fgp.kernels.RBF(0.7)
    frozen.requires_grad_(False)
    constant = fgp.kernels.Constant(2.0).requires_grad_(False)
    for kernel in (KERNEL, frozen, constant):
        wanted = kernel(X).to_dense() + torch.diag_embed(noise)
        assert torch.allclose(kernel(X).with_noise(noise).to_dense(), wanted, rtol=0, atol=1e-14)
        with torch.no_grad():
            assert torch.allclose(kernel(X).with_noise(noise).to_dense(), wanted, rtol=0, atol=1e-14)
            assert torch.allclose(kernel(X).with_noise(noise[0]).to_dense(), wanted[0], rtol=0, atol=1e-14)
        mapped = torch.func.vmap(lambda v, kernel=kernel: kernel(X).with_noise(v).to_dense())
        assert torch.allclose(mapped(noise), wanted, rtol=0, atol=1e-14)
        wanted = kernel(X).to_dense() + noise[2, 0] * torch.eye(9, dtype=F64)
        assert torch.allclose(mapped(noise[:, 0])[2], wanted, rtol=0, atol=1e-14)
    diagonal = DiagonalOperator(noise[0])
    assert torch.allclose((diagonal + DiagonalOperator(noise)).to_dense()[1], torch.diag(noise[0] + noise[1]))
    assert torch.equal(diagonal.values, noise[0])
    assert torch.autograd.gradcheck(lambda v: frozen(X).with_noise(v).to_dense(), noise.clone().requires_grad_())


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(fgp.ShapeError, match="square"):
        KERNEL(X, Z).with_noise(0.1)
    with pytest.raises(fgp.ShapeError, match="one shape"):
        KERNEL(X, Z) + KERNEL(X)
    with pytest.raises(fgp.DomainError, match=r"float32.*float64|float64.*float32"):
        KERNEL(X) + DiagonalOperator(torch.ones(9))
    with pytest.raises(fgp.ShapeError, match="9 rows"):
        KERNEL(X) @ numbers(6)
    with pytest.raises(fgp.DomainError, match="float32"):
        KERNEL(X) @ numbers(9).float()
    with pytest.raises(TypeError):
        KERNEL(X) + 1.0  # type: ignore[operator]
    with pytest.raises(fgp.ShapeError, match="one matrix"):
        KERNEL(numbers(2, 4, 2)).to_scipy()


def test_arrays_dtypes_and_variances_that_are_refused() -> None:
    noisy, y = KERNEL(X).with_noise(0.5), numbers(9)
    for operator in (KERNEL(X), noisy, noisy[:, :3].T):
        with pytest.raises(fgp.DomainError, match=r"`right` must be a torch tensor, got a NumPy array.*to_scipy"):
            operator @ y.numpy()
        with pytest.raises(fgp.DomainError, match="`left` must be a torch tensor, got a NumPy array"):
            y.numpy() @ operator
        for dtype in (torch.int32, torch.bool, torch.complex64):
            with pytest.raises(fgp.DomainError, match="`dtype` must be a floating dtype, got torch"):
                operator.to_dense(dtype)
    for variance in (-1.0, float("nan"), float("inf"), torch.tensor([1.0] * 8 + [-0.1])):
        with pytest.raises(fgp.DomainError, match="`variance` must be finite and not negative, got"):
            KERNEL(X).with_noise(variance)


def test_from_the_left_and_transposed() -> None:
    noisy = KERNEL(X).with_noise(torch.arange(9.0, dtype=F64))
    for operator in (KERNEL(X, Z), noisy, noisy[:, [2, 0]], DiagonalOperator(numbers(9))):
        dense = operator.to_dense()
        for left in (numbers(9), numbers(4, 9), numbers(2, 4, 9)):
            assert torch.allclose(left @ operator, left @ dense, rtol=0, atol=1e-13)
        assert torch.allclose(operator.mT.to_dense(), dense.mT, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_taken_as_float32(dtype: torch.dtype) -> None:
    operator, right = KERNEL(X.to(dtype)), numbers(9, 2).to(dtype)
    assert operator.dtype == torch.float32
    assert torch.equal(operator @ right, operator @ right.float())
    with pytest.raises(fgp.DomainError, match=str(dtype)):
        KERNEL(X) @ right


def test_scipy_solves_with_it() -> None:
    from scipy.sparse.linalg import cg

    noisy, y = KERNEL(X).with_noise(0.5), numbers(9)
    scipy_operator = noisy.to_scipy()
    assert scipy_operator.shape == (9, 9)
    solution, failed = cg(scipy_operator, y.numpy(), rtol=1e-12)
    assert failed == 0
    assert torch.allclose(noisy.to_dense() @ torch.from_numpy(solution), y, rtol=0, atol=1e-9)
    wide = KERNEL(X, Z).to_scipy()
    assert torch.allclose(torch.from_numpy(wide.rmatvec(y.numpy())), KERNEL(X, Z).to_dense().T @ y, rtol=0, atol=1e-13)
    assert wide.matmat(numbers(6, 2).numpy()).shape == (9, 2)


def test_scipy_with_complex_vectors() -> None:
    """Real and imaginary parts, there and back (the adjoint), vectors and matrices; float32 gives complex64."""
    dense = KERNEL(X, Z).to_dense().detach().numpy()
    operator = KERNEL(X, Z).to_scipy()
    one, two = numbers(6, 3).numpy() + 1j * numbers(6, 3, seed=1).numpy(), numbers(9, 2).numpy() * (1 - 2j)
    for found, wanted in (
        (operator @ one, dense @ one),
        (operator.matvec(one[:, 0]), dense @ one[:, 0]),
        (operator.rmatvec(two[:, 0]), dense.conj().T @ two[:, 0]),
        (operator.H @ two, dense.conj().T @ two),
        (operator.T @ two, dense.T @ two),
    ):
        assert found.shape == wanted.shape
        assert numpy.abs(found - wanted).max() <= 1e-13
    assert (KERNEL(X.float()).to_scipy() @ (numbers(9).numpy() * 1j)).dtype == numpy.complex64
