"""FlashGPModel says what SingleTaskGP with the same state_dict says, and acquisition functions optimise with it."""

import warnings

import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.acquisition.max_value_entropy_search import qMaxValueEntropy
from botorch.acquisition.multi_objective import qExpectedHypervolumeImprovement
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize, Standardize, Warp
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.multi_objective.box_decompositions import NondominatedPartitioning
from gpytorch.kernels import RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

import flashgp as fgp
from flashgp.interop.botorch import FlashGPModel

F64 = torch.float64
CASES = [((), 1, False), ((), 2, True), ((2,), 1, False), ((2,), 2, True)]


def uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def table(batch=(), outputs: int = 1, n: int = 15) -> tuple[torch.Tensor, torch.Tensor]:
    x = uniform(*batch, n, 2, seed=1)
    return x, torch.stack([torch.sin(5.0 * x.sum(-1) + k) for k in range(outputs)], -1)


def pair(batch=(), outputs: int = 1, known: bool = False, **more) -> tuple[FlashGPModel, SingleTaskGP]:
    """Both models with the same parameters."""
    x, y = table(batch, outputs)
    noise = torch.linspace(0.01, 0.1, y.numel(), dtype=F64).reshape(y.shape) if known else None
    ours, theirs = (one(x, y, noise, **more) for one in (FlashGPModel, SingleTaskGP))
    with torch.no_grad():
        theirs.covar_module.lengthscale = 0.3 + uniform(*theirs.covar_module.lengthscale.shape, seed=2)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def same(ours, theirs, rtol: float = 1e-8) -> None:
    assert ours.mean.shape == theirs.mean.shape
    assert torch.allclose(ours.mean, theirs.mean, rtol=rtol, atol=rtol)
    assert torch.allclose(ours.variance, theirs.variance, rtol=rtol, atol=rtol)
    joint = ours.distribution.covariance_matrix
    assert torch.allclose(joint, theirs.distribution.covariance_matrix, rtol=rtol, atol=rtol)


@pytest.mark.parametrize(("batch", "outputs", "known"), CASES)
def test_posteriors_and_their_gradients_are_those_of_single_task_gp(batch, outputs: int, known: bool) -> None:
    ours, theirs = pair(batch, outputs, known)
    for shape in ((4,), (3, *batch, 4)):
        points = [uniform(*shape, 2, seed=3).requires_grad_() for _ in range(2)]
        for noise in (False, True):
            same(
                ours.posterior(points[0], observation_noise=noise), theirs.posterior(points[1], observation_noise=noise)
            )
        for model, x in zip((ours, theirs), points, strict=True):
            said = model.posterior(x)
            (said.mean.square().sum() + said.distribution.covariance_matrix.square().sum()).backward()
        assert torch.allclose(points[0].grad, points[1].grad, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("batch", "outputs", "known"), CASES)
def test_fantasies_of_fantasies_too(batch, outputs: int, known: bool) -> None:
    models = pair(batch, outputs, known)
    for model in models:
        model.posterior(uniform(1, 2))
    x, again = uniform(3, *batch, 2, 2, seed=4), uniform(6, 3, *batch, 1, 2, seed=5)
    once = [one.fantasize(x, SobolQMCNormalSampler(torch.Size([6]), seed=1)) for one in models]
    assert isinstance(once[0], FlashGPModel)
    twice = [one.fantasize(again, SobolQMCNormalSampler(torch.Size([2]), seed=2)) for one in once]
    for shape in ((4, 2), (6, 3, *batch, 4, 2)):
        same(*(one.posterior(uniform(*shape, seed=6)) for one in once))
    same(*(one.posterior(uniform(4, 2, seed=6)) for one in twice))


@pytest.mark.parametrize(("outputs", "known"), [(1, False), (2, True)])
def test_rows_that_join(outputs: int, known: bool) -> None:
    models = pair((), outputs, known)
    x, y = uniform(3, 2, seed=4), uniform(3, outputs, seed=5)
    found = []
    for model in models:
        model.posterior(x)
        more = {"noise": torch.full_like(y, 0.02)} if known else {}
        found.append(model.condition_on_observations(x, y, **more))
    assert found[0].train_inputs[0].shape == found[1].train_inputs[0].shape
    same(*(one.posterior(uniform(4, 2, seed=6)) for one in found))
    none = models[0].condition_on_observations(x[:0], y[:0], **({"noise": y[:0]} if known else {}))
    same(none.posterior(x), models[0].posterior(x))


def test_parameters_that_are_written_to_change_answers() -> None:
    ours, theirs = pair()
    points = uniform(4, 2, seed=3)
    before = ours.posterior(points).mean
    again = ours.condition_on_observations(points[:1], before[:1])
    assert again.prediction_strategy is again._posteriors()
    theirs.covar_module.lengthscale = 0.9
    ours.covar_module.lengthscale = 0.9  # in evaluation mode
    same(ours.posterior(points), theirs.posterior(points))
    assert not torch.allclose(ours.posterior(points).mean, before)


def test_gradients_pass_through_fantasies() -> None:
    model, _ = pair()  # BoTorch's own detaches a part of them
    x, step = uniform(2, 1, 2, seed=7).requires_grad_(), torch.zeros(2, 1, 2, dtype=F64)
    step[0, 0, 1] = 1e-5

    def value(x: torch.Tensor) -> torch.Tensor:
        fantasies = model.fantasize(x, SobolQMCNormalSampler(torch.Size([4]), seed=1))
        return fantasies.posterior(uniform(4, 2, 1, 2, seed=8)).mean.square().sum()

    value(x).backward()
    with torch.no_grad():
        slope = (value(x + step) - value(x - step)) / 2e-5
    assert torch.allclose(x.grad[0, 0, 1], slope, rtol=1e-5, atol=1e-7)


def test_transforms_and_subsets() -> None:
    bounds = torch.tensor([[0.0, 0.0], [2.0, 3.0]], dtype=F64)
    ours, theirs = pair((), 2, outcome_transform=Standardize(2), input_transform=Normalize(2, bounds=bounds))
    points = uniform(4, 2, seed=3)
    same(ours.posterior(points), theirs.posterior(points))
    same(ours.subset_output([1]).posterior(points), theirs.subset_output([1]).posterior(points))
    fresh = FlashGPModel(*table(outputs=3))
    with torch.no_grad():
        fantasies = fresh.fantasize(uniform(2, 1, 2, seed=4), SobolQMCNormalSampler(torch.Size([4]), seed=1))
    for model in (fresh, fantasies):
        whole = model.posterior(points).mean
        for chosen in ([1], [2, 0]):
            assert torch.allclose(model.subset_output(chosen).posterior(points).mean, whole[..., chosen])


@pytest.mark.parametrize("outputs", [2])
def test_fits_reach_the_optimum_of_botorchs_own_search(outputs: int) -> None:
    found = []
    for cls in (FlashGPModel, SingleTaskGP):
        x, y = table(outputs=outputs)
        model = cls(x, y + 0.05 * uniform(*y.shape, seed=9))
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        fit_gpytorch_mll(mll)
        model.train()
        with torch.no_grad():
            found.append(mll(model(*model.train_inputs), model.train_targets).sum())
    assert found[0] > found[1] - 1e-4


def test_a_kernel_of_ours_for_every_output() -> None:
    x, y = table(outputs=2)
    kernel = 1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(2)) + fgp.kernels.Linear()
    model = FlashGPModel(x, y, kernel=kernel).fit(max_iterations=5)
    scales = model.covar_module.kernels[0].base_kernel.lengthscale
    assert scales.shape == (2, 1, 2)
    assert not torch.allclose(scales[0], scales[1])
    points = uniform(4, 2, seed=3)
    one = model.subset_output([1]).posterior(points)
    assert torch.allclose(one.mean, model.posterior(points).mean[:, [1]])
    deep = FlashGPModel(x, y[:, :1], kernel=fgp.kernels.Warped(torch.nn.Linear(2, 2).double(), fgp.kernels.Matern()))
    assert deep.fit(max_iterations=3).posterior(points).mean.shape == (4, 1)
    for wrong in ("RBF", RBFKernel()):
        with pytest.raises(fgp.DomainError, match=r"`kernel` must be a covariance function of flashgp.kernels, got"):
            FlashGPModel(x, y, kernel=wrong)
    with pytest.raises(fgp.DomainError, match="`kernel` and `covar_module`"):
        FlashGPModel(x, y, kernel=kernel, covar_module=RBFKernel())


def test_parameters_that_outputs_share_are_refused() -> None:
    x, y = table(outputs=2)
    model = FlashGPModel(x, y, covar_module=RBFKernel())
    with pytest.raises(fgp.DomainError, match=r"each of 2 outputs .* batch_shape=torch.Size\(\[2\]\)"):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))


def test_a_learned_transform_is_fitted_by_botorch_and_told() -> None:
    x, y = table(n=6)
    warp = Warp(2, indices=[0, 1])
    model = FlashGPModel(x, y, input_transform=warp)
    with pytest.warns(fgp.FlashGPWarning, match="transform of the inputs is learned"):
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": 2}}
        )
    assert not torch.equal(warp.concentration0.detach(), torch.ones_like(warp.concentration0))


@pytest.mark.parametrize(("batch", "outputs"), [((), 1), ((), 2), ((2,), 1)])
def test_paths_have_the_posteriors_moments(batch, outputs: int) -> None:
    model, _ = pair(batch, outputs)
    torch.manual_seed(0)
    paths = draw_matheron_paths(model, torch.Size([512]))
    points = uniform(3, 2, seed=3)
    drawn = paths(points.unsqueeze(-3) if outputs > 1 else points)  # (512, *batch[, outputs], 3)
    drawn = drawn.movedim(-2, -1) if outputs > 1 else drawn.unsqueeze(-1)
    said = model.posterior(points)
    assert torch.allclose(drawn.mean(0), said.mean, atol=0.2)
    assert torch.allclose(drawn.var(0), said.variance, atol=0.1)


def test_each_path_at_points_of_its_own() -> None:
    model, _ = pair()
    torch.manual_seed(0)
    paths = draw_matheron_paths(model, torch.Size([3]))
    points = uniform(4, 3, 5, 2, seed=3)
    together = paths(points)
    for k in range(3):
        assert torch.allclose(together[:, k], paths(points[:, k].unsqueeze(1))[:, k])
    assert together.shape == (4, 3, 5)


def test_what_ax_builds_a_model_from() -> None:
    x, y = table()
    data = SupervisedDataset(x, y, feature_names=["a", "b"], outcome_names=["y"])
    assert FlashGPModel(**FlashGPModel.construct_inputs(data)).num_outputs == 1


def _kg(model, best):
    return qKnowledgeGradient(model, num_fantasies=2)


def _ehvi(model, best):
    x, y = table(outputs=2)
    both = ModelListGP(model, FlashGPModel(x, y[:, 1:]))
    reference = torch.tensor([-1.0, -1.0], dtype=F64)
    return qExpectedHypervolumeImprovement(both, reference, NondominatedPartitioning(reference, Y=y))


ACQUISITIONS = {
    "LogEI": lambda model, best: LogExpectedImprovement(model, best),
    "UCB": lambda model, best: UpperConfidenceBound(model, beta=2.0),
    "qLogEI": lambda model, best: qLogExpectedImprovement(model, best),
    "qLogNEI": lambda model, best: qLogNoisyExpectedImprovement(model, model.train_inputs[0]),
    "qEHVI": _ehvi,
    "MES": lambda model, best: qMaxValueEntropy(model, uniform(50, 2, seed=4)),
    "knowledge gradient": _kg,
    "Thompson": lambda model, best: PathwiseThompsonSampling(model),
}


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_acquisition_functions_optimise(name: str) -> None:
    x, y = table()
    model = FlashGPModel(x, y).eval()
    torch.manual_seed(0)
    acquisition = ACQUISITIONS[name](model, y.max())
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, value = optimize_acqf(
            acquisition, bounds, q=1, num_restarts=2, raw_samples=16, options={"maxiter": 10, "seed": 1}
        )
    assert ((found >= 0.0) & (found <= 1.0)).all()
    if name != "knowledge gradient":  # whose value is of its fantasies' points too
        anywhere = torch.stack([acquisition(one) for one in uniform(8, 1, 1, 2, seed=5)])
        assert value >= anywhere.max() - 1e-6
