"""Model files: what was saved predicts the same bits after loading, and learning goes on from the same state."""

import copy
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, distributions, nn

import flashgp as fgp
from flashgp.files import container, load_metadata
from flashgp.files.priors import PRIORS
from flashgp.files.report_fields import json_report, report_json
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.posterior import Posterior
from flashgp.kernels import REGISTRY

D = 3


def points(n: int, d: int = D, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def codes(n: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 4, (n, D), generator=torch.Generator().manual_seed(seed)).double()


def saved(posterior: Any, path: Path, **keywords: Any) -> Path:
    """Save without the warning about foreign modules, which has a test of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        fgp.save(posterior, path, **keywords)
    return path


def strides(tensor: Tensor) -> list[int]:
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def assert_same(first: Posterior, second: Posterior, x_test: Tensor) -> None:
    """Equal bits in every prediction and every stored field; equal strides, so that products stay equal too."""
    one, two = first.predict(x_test), second.predict(x_test)
    assert torch.equal(one.mean, two.mean)
    assert torch.equal(one.variance, two.variance)
    assert torch.equal(one.observation_variance, two.observation_variance)
    assert torch.equal(one.sample(3, observed=True, seed=1), two.sample(3, observed=True, seed=1))
    assert torch.equal(first.log_marginal_likelihood(), second.log_marginal_likelihood())
    for name in ("x", "y", "representer_weights", "residual"):
        a, b = getattr(first, name), getattr(second, name)
        assert torch.equal(a, b), name
        assert a.dtype == b.dtype, name
    assert strides(first.representer_weights) == strides(second.representer_weights)
    assert len(first.by_output) == len(second.by_output)
    for a, b in zip(first.by_output or (first,), second.by_output or (second,), strict=True):
        if a.factor is None or b.factor is None:
            assert a.factor is b.factor
        else:
            assert torch.equal(a.factor.lower.tril(), b.factor.lower)
            assert torch.equal(a.factor.jitter, b.factor.jitter)
            assert a.factor.attempts == b.factor.attempts
        assert strides(a.representer_weights) == strides(b.representer_weights)
    assert first.report == second.report
    assert {n: p.detach().tolist() for n, p in first.gp.named_parameters()} == {
        n: p.detach().tolist() for n, p in second.gp.named_parameters()
    }


EXAMPLES = [(name, i) for name, row in REGISTRY.items() for i in range(len(row.examples(D)))]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("name", "index"), EXAMPLES)
def test_every_registered_kernel_comes_back(tmp_path: Path, name: str, index: int, dtype: torch.dtype) -> None:
    row = REGISTRY[name]
    kernel = row.examples(D)[index]
    make = codes if row.inputs == "codes" else points
    posterior = fgp.GP(kernel).condition(make(13), points(13, 1, seed=1)[:, 0], dtype=dtype)
    # A caller's module that starts elsewhere: the numbers must come from the file.
    modules: dict[str, object] = {}
    if isinstance(kernel, fgp.kernels.Warped):
        modules = {"kernel.module": nn.Sequential(nn.Linear(D, 2), nn.Tanh())}
    if isinstance(kernel, fgp.kernels.Custom):
        modules = {"kernel.function": kernel.function}
    loaded = fgp.load(saved(posterior, tmp_path / "m"), modules)
    assert_same(posterior, loaded, make(7, seed=2))
    assert repr(loaded.gp) == repr(posterior.gp)


def test_a_kernel_of_other_parts_and_columns(tmp_path: Path) -> None:
    k = fgp.kernels
    kernel = 2.0 * (k.Matern(1.5, active_dims=[0, -1]) + k.Periodic(2.0, active_dims=1)) * k.RationalQuadratic(0.8)
    kernel = kernel + k.Categorical(torch.tensor([0.4, 2.0]), active_dims=[2, 3]) * k.Polynomial(
        3, 0.3, active_dims=[0]
    )
    x = torch.cat([points(11, 2), codes(11)[:, :2]], -1)
    posterior = fgp.GP(kernel, fgp.means.Linear(points(1, 4)[0], 0.3)).condition(x, x[:, 0])
    assert_same(posterior, fgp.load(saved(posterior, tmp_path / "m")), x[:5] + torch.tensor([0.1, 0.0, 0.0, 0.0]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("outputs", "shared"), [(None, False), (1, False), (3, True), (3, False)])
def test_batches_outputs_and_dtypes(tmp_path: Path, outputs: int | None, shared: bool, dtype: torch.dtype) -> None:
    kernel = torch.tensor([1.0, 2.0]) * fgp.kernels.Matern(1.5, torch.tensor([[1.0, 1, 1], [2, 2, 2]]))
    mean = torch.tensor([0.0, 1.0]) if outputs is None else torch.arange(2.0 * outputs).reshape(2, outputs)
    noise = fgp.likelihoods.Gaussian(torch.tensor([0.1, 0.2]), shared=shared)
    if outputs == 3 and not shared:
        noise = fgp.likelihoods.Gaussian(torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]), outputs=3)
    gp = fgp.GP(kernel, fgp.means.Constant(mean, outputs), noise, outputs=outputs)
    y = points(9, outputs or 1, seed=1, dtype=dtype)
    posterior = gp.condition(points(9, dtype=dtype), y[:, 0] if outputs is None else y)
    assert_same(posterior, fgp.load(saved(posterior, tmp_path / "m")), points(5, seed=3, dtype=dtype))


def test_a_batch_of_points_and_two_batch_dimensions(tmp_path: Path) -> None:
    x = points(2 * 3 * 5).reshape(2, 3, 5, D)
    posterior = fgp.GP(fgp.kernels.RBF(), fgp.means.Zero()).condition(x, x[..., 0])
    assert_same(posterior, fgp.load(saved(posterior, tmp_path / "m")), points(3, seed=1))


@pytest.mark.parametrize(("n", "outputs"), [(0, None), (0, 2), (1, None)])
def test_few_rows(tmp_path: Path, n: int, outputs: int | None) -> None:
    y = points(n, 2) if outputs else points(n, 1)[:, 0]
    posterior = fgp.GP(fgp.kernels.RBF(), outputs=outputs).condition(points(n), y)
    assert_same(posterior, fgp.load(saved(posterior, tmp_path / "m")), points(4, seed=1))


def test_row_variances_weights_and_no_noise(tmp_path: Path) -> None:
    rows, weights = points(8, 1)[:, 0].abs(), points(8, 1, seed=1)[:, 0].abs() + 0.1
    for likelihood in (
        fgp.likelihoods.Gaussian(0.3, row_variance=rows),
        fgp.likelihoods.Gaussian(0.3, row_weight=weights),
        fgp.likelihoods.Gaussian(None, row_variance=rows),
        fgp.likelihoods.Gaussian(0.0),
    ):
        gp = fgp.GP(fgp.kernels.Matern(0.5), likelihood=likelihood)
        posterior = gp.condition(points(8), points(8, 1, seed=2)[:, 0])
        assert_same(posterior, fgp.load(saved(posterior, tmp_path / "m")), points(4, seed=3))


def test_jitter_and_a_report_with_events(tmp_path: Path) -> None:
    gp = fgp.GP(fgp.kernels.RBF(), likelihood=fgp.likelihoods.Gaussian(0.0))
    with pytest.warns(fgp.FlashGPWarning, match="jitter"):
        posterior = gp.condition(1e-12 * torch.arange(4.0).unsqueeze(-1), torch.ones(4))
    assert posterior.report.jitter
    assert_same(posterior, fgp.load(saved(posterior, tmp_path / "m")), points(3, 1))
    posterior.report.error_bound, posterior.report.standard_error = float("inf"), float("nan")
    report = fgp.load(saved(posterior, tmp_path / "m")).report
    assert report.error_bound == float("inf")
    assert report.standard_error != report.standard_error


def test_memory_order_of_points_is_kept(tmp_path: Path) -> None:
    y = points(9, 1, seed=1)[:, 0]
    for x in (points(D, 9).mT, points(18)[::2], points(9, 1).expand(9, D), points(3 * 9, D).reshape(9, 3, D)[:, 1]):
        posterior = fgp.GP(fgp.kernels.RBF(torch.ones(D))).condition(x, y)
        loaded = fgp.load(saved(posterior, tmp_path / "m"))
        assert_same(posterior, loaded, points(5, seed=2))
    transposed = points(2, 9)
    gp = fgp.GP(fgp.kernels.RBF(), likelihood=fgp.likelihoods.Gaussian(0.1, shared=True), outputs=2)
    loaded = fgp.load(saved(gp.condition(points(9), transposed.mT), tmp_path / "m"))
    assert loaded.y.stride() == transposed.mT.stride()


# -- learning goes on -----------------------------------------------------------------------------------------------
def learner() -> fgp.GP:
    shared = fgp.Parameter(torch.tensor([0.5, 0.7, 0.9]), prior=distributions.LogNormal(0.1, 1.3))
    k = fgp.kernels
    kernel = k.Scaled(k.Matern(2.5, shared), fgp.Parameter(1.3, distributions.constraints.interval(0.5, 9.0)))
    kernel = kernel + k.Periodic(fgp.Parameter(2.0, trainable=False), shared)
    noise = fgp.Parameter(0.1, distributions.constraints.greater_than(1e-4), distributions.Gamma(1.1, 0.05))
    return fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(noise))


def test_flags_domains_priors_and_sharing_come_back(tmp_path: Path) -> None:
    gp = learner()
    x, y = points(10), points(10, 1, seed=1)[:, 0]
    posterior = gp.condition(x, y)
    held = fgp.load(saved(posterior, tmp_path / "m")).gp
    trainable = [name for name, p in gp.named_parameters() if p.requires_grad]
    assert held.trainable_names() == posterior.gp.trainable_names() == trainable
    assert not any(p.requires_grad for p in held.parameters())
    loaded = held.released()
    assert {n: p.requires_grad for n, p in loaded.named_parameters()} == {
        n: p.requires_grad for n, p in gp.named_parameters()
    }
    assert sum(p.requires_grad for p in loaded.parameters()) == 4
    first, second = loaded.kernel.parts
    assert first.kernel.lengthscale is second.lengthscale
    assert repr(loaded) == repr(gp)
    assert loaded.kernel.parts[0].variance.domain == gp.kernel.parts[0].variance.domain
    values = [model.log_joint(x, y, jacobian=True) for model in (gp, loaded)]
    assert torch.equal(*values)
    for value in values:
        value.sum().backward()
    for (name, a), (_, b) in zip(gp.named_parameters(), loaded.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        assert a.grad is None or torch.equal(a.grad, b.grad), name


def test_fit_goes_on_from_a_loaded_fit(tmp_path: Path) -> None:
    x, y = points(15), points(15, 1, seed=1)[:, 0]
    fit = fgp.fit(learner(), x, y, initial="given", max_iterations=3)
    loaded = fgp.load(saved(fit, tmp_path / "m"))
    assert_same(fit.posterior, loaded, points(4, seed=2))
    further = [fgp.fit(gp, x, y, initial="given", max_iterations=5) for gp in (fit.gp, loaded.gp)]
    assert repr(further[0].gp) == repr(further[1].gp)
    assert torch.equal(*(f.posterior.log_marginal_likelihood() for f in further))


PRIOR_ARGUMENTS = {
    "Beta": (2.0, 3.0), "Cauchy": (0.1, 0.7), "Exponential": (0.3,), "Gamma": (1.5, 0.2), "HalfCauchy": (0.3,),
    "HalfNormal": (1.1,), "InverseGamma": (2.0, 0.3), "Laplace": (0.1, 0.3), "LogNormal": (0.1, 0.9),
    "Normal": (0.3, 0.1), "StudentT": (4.0, 0.1, 0.2), "Uniform": (0.1, 0.9),
}  # fmt: skip


@pytest.mark.parametrize("name", PRIORS)
def test_every_prior_comes_back(tmp_path: Path, name: str) -> None:
    kind: Any = PRIORS[name][0]
    ours = dict(zip(PRIORS[name][1], map(torch.tensor, PRIOR_ARGUMENTS[name]), strict=True))
    doubles = {key: torch.stack([value, value * 1.1, value * 1.2]).double() for key, value in ours.items()}
    for arguments in (ours, doubles):
        prior = kind(**arguments)
        gp = fgp.GP(fgp.kernels.RBF(fgp.Parameter(torch.tensor([0.3, 0.4, 0.5]), prior=prior)))
        loaded = fgp.load(saved(gp.condition(points(3), torch.zeros(3)), tmp_path / "m")).gp
        assert type(loaded.kernel.lengthscale.prior) is kind
        assert torch.equal(loaded.log_prior(), gp.log_prior())


# -- foreign modules ------------------------------------------------------------------------------------------------
class Bend(nn.Module):
    """Weights, a buffer, an integer buffer, a tied weight, a submodule that behaves otherwise while training."""

    def __init__(self, width: int = 4, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(D, width).to(dtype)
        self.norm = nn.BatchNorm1d(width).to(dtype)
        self.again = self.first
        self.register_buffer("shift", torch.tensor(0.25, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.first(x)) + self.shift)


class Total(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = fgp.Parameter(0.7, prior=distributions.Normal(0.0, 1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.value * x.sum(-1)


def warped(dtype: torch.dtype = torch.float32) -> Posterior:
    torch.manual_seed(3)
    bend = Bend(dtype=dtype).eval()
    bend.norm.running_mean.fill_(0.3)
    k = fgp.kernels
    kernel = 2.0 * k.Warped(bend, k.RBF()) + k.Warped(bend, k.Matern(0.5), active_dims=[2, 0, 1])
    return fgp.GP(kernel, Total()).condition(points(8), points(8, 1)[:, 0])


KEYS = ("kernel.kernels.0.kernel.module", "mean")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_foreign_modules_are_numbers_only(tmp_path: Path, dtype: torch.dtype) -> None:
    posterior = warped(dtype)
    with pytest.warns(fgp.FlashGPWarning) as record:
        fgp.save(posterior, tmp_path / "m")
    assert all(repr(key) in str(record[0].message) for key in KEYS)
    modules = {KEYS[0]: Bend(), KEYS[1]: Total()}  # in training mode, of other weights and of the default dtype
    before = copy.deepcopy({key: module.state_dict() for key, module in modules.items()})
    loaded = fgp.load(tmp_path / "m", modules)
    assert_same(posterior, loaded, points(5, seed=2))
    for key, module in modules.items():
        assert module.training
        assert all(torch.equal(value, before[key][name]) for name, value in module.state_dict().items()), "mutated"
    first, second = loaded.gp.kernel.parts
    assert first.kernel.module is second.module
    assert second.module.again is second.module.first
    assert second.module.first.weight.dtype == dtype


def test_a_missing_module_is_named(tmp_path: Path) -> None:
    path = saved(warped(), tmp_path / "m")
    with pytest.raises(fgp.DomainError, match=r"'kernel\.kernels\.0\.kernel\.module', 'mean'"):
        fgp.load(path)
    with pytest.raises(fgp.DomainError, match=r"must hold the torch module 'mean'"):
        fgp.load(path, {KEYS[0]: Bend()})
    with pytest.raises(fgp.DomainError, match=r"names 'other', which the file does not have"):
        fgp.load(path, {KEYS[0]: Bend(), KEYS[1]: Total(), "other": Total()})
    with pytest.raises(fgp.DomainError, match=r"must be a torch.nn.Module, got str"):
        fgp.load(path, {KEYS[0]: "Bend", KEYS[1]: Total()})  # type: ignore[dict-item]
    with pytest.raises(fgp.DomainError, match="none: the model has no foreign module"):
        fgp.load(saved(fgp.GP(fgp.kernels.RBF()).condition(points(2), torch.zeros(2)), path), {"mean": Total()})


def test_a_module_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path = saved(warped(), tmp_path / "m")
    with pytest.raises(fgp.ShapeError, match=r"module'\]` must have '.*' of shape \(4.*, got \(5"):
        fgp.load(path, {KEYS[0]: Bend(5), KEYS[1]: Total()})
    with pytest.raises(fgp.DomainError, match=r"only the file has 'weight.raw'"):
        fgp.load(path, {KEYS[0]: Bend(), KEYS[1]: nn.Identity()})
    with pytest.raises(fgp.DomainError, match=r"only the module has 'extra'"):
        extra = Total()
        extra.register_buffer("extra", torch.zeros(1))
        fgp.load(path, {KEYS[0]: Bend(), KEYS[1]: extra})


class Bent(Bend):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.first(x)) - self.shift)


def test_other_code_than_was_saved_is_told(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    def told(*names: str) -> None:
        assert [str(w.message).split(" in `modules`")[0] for w in recwarn] == [f"the code of {n!r}" for n in names]
        recwarn.clear()

    path = saved(warped(), tmp_path / "m")
    recwarn.clear()
    fgp.load(path, {KEYS[0]: Bend(), KEYS[1]: Total()})
    told()
    fgp.load(path, {KEYS[0]: Bent(), KEYS[1]: Total()})
    told(KEYS[0])
    functions = [lambda x, z: torch.exp(-(x - z).square().sum()), lambda x, z: torch.exp(-2 * (x - z).square().sum())]
    saved(fgp.GP(fgp.kernels.Custom(functions[0])).condition(points(5), points(5)[:, 0]), path)
    recwarn.clear()
    fgp.load(path, {"kernel.function": functions[0]})
    told()
    fgp.load(path, {"kernel.function": functions[1]})
    told("kernel.function")


# -- what a file cannot hold ------------------------------------------------------------------------------------------
class Own(fgp.kernels.RBF):
    pass


Impostor = type("Matern", (fgp.kernels.RBF,), {})


class Stateful(Total):
    def get_extra_state(self) -> object:
        return object()

    def set_extra_state(self, state: object) -> None:
        pass


def _refused_gps() -> dict[str, tuple[fgp.GP, str]]:
    k = fgp.kernels
    shared = Total()
    mixture = distributions.TransformedDistribution(distributions.Normal(0.0, 1.0), [distributions.ExpTransform()])
    deep: fgp.kernels.Kernel = k.RBF()
    for _ in range(64):
        deep = 1.0 * deep
    attached = fgp.GP(k.RBF())
    attached.kernel.extra = nn.Parameter(torch.zeros(1))
    return {
        "an own kernel": (fgp.GP(k.RBF() + 2.0 * Own()), r"`kernel\.kernels\.1\.kernel` .* got Own"),
        "a kernel of a registered name": (fgp.GP(Impostor()), r"`kernel` must be .* got Matern"),
        "an own prior": (
            fgp.GP(k.RBF(fgp.Parameter(1.0, prior=mixture))),
            r"prior of `kernel\.lengthscale` .* got Transf",
        ),
        "a prior of more numbers": (
            fgp.GP(k.RBF(fgp.Parameter(1.0, prior=distributions.Normal(torch.zeros(3), 1.0)))),
            r"broadcasts to \(\) to be saved, got \(3,\)",
        ),
        "a state that is no tensor": (fgp.GP(k.RBF(), Stateful()), r"`mean` .* got object"),
        "a weight in two places": (fgp.GP(k.RBF(shared.weight), shared), r"`mean` and `kernel\.lengthscale` share"),
        "a parameter of no part": (attached, r"`kernel\.extra` is part of no"),
        "too deep": (fgp.GP(deep), "at most 1024 parts, 64 deep"),
    }


@pytest.mark.parametrize("case", _refused_gps())
def test_what_a_file_cannot_hold_is_refused_when_saving(tmp_path: Path, case: str) -> None:
    gp, message = _refused_gps()[case]
    posterior = gp.condition(points(3), torch.zeros(3))
    with pytest.raises(fgp.DomainError, match=message):
        fgp.save(posterior, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_only_posteriors_and_fits_are_saved(tmp_path: Path) -> None:
    for model in (fgp.GP(fgp.kernels.RBF()), None, {}):
        with pytest.raises(fgp.DomainError, match="must be a Posterior, a Fit"):
            fgp.save(model, tmp_path / "m")  # type: ignore[arg-type]
    posterior = type("Mine", (fgp.GP,), {})(fgp.kernels.RBF()).condition(points(3), torch.zeros(3))
    with pytest.raises(fgp.DomainError, match="subclass Mine"):
        fgp.save(posterior, tmp_path / "m")


# -- the file -----------------------------------------------------------------------------------------------------
def small(**keywords: Any) -> Posterior:
    return fgp.GP(fgp.kernels.RBF(), **keywords).condition(points(7), points(7, 1)[:, 0])


def test_other_readers_of_safetensors_can_open_it(tmp_path: Path) -> None:
    posterior = small()
    path = saved(posterior, tmp_path / "m.safetensors", metadata={"a": 1})
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        config = json.loads(file.metadata()["config"])
        assert file.metadata()["format_version"] == "5"
    assert torch.equal(tensors["x"], posterior.x)
    lower = posterior.factor.lower
    assert torch.equal(tensors["factor"], torch.cat([lower[j:, j] for j in range(7)]))
    assert config["flashgp"] == fgp.__version__
    assert config["torch"] == torch.__version__
    assert path.stat().st_size < 8 + 6000 + 8 * (7 * 8 // 2 + 7 * 6)


def test_metadata_is_kept(tmp_path: Path) -> None:
    metadata = {
        "encoding": {"columns": ["a", "größe \U0001f600"], "scale": [1e-300, -0.0, 3]},
        "none": None,
        "yes": True,
    }
    path = saved(small(), tmp_path / "m", metadata=metadata)
    assert load_metadata(path) == metadata
    assert load_metadata(saved(small(), path)) == {}


@pytest.mark.parametrize("value", [float("nan"), 2**63, {1: 2}, object(), "\ud800"])
def test_metadata_that_json_does_not_hold_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(fgp.DomainError, match="`metadata` must hold JSON"):
        fgp.save(small(), tmp_path / "m", metadata={"value": value})
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = small()
    path = saved(old, tmp_path / "m")

    for name, error, caught in (("fsync", OSError(28, "No space left on device"), fgp.DomainError),
                                ("replace", KeyboardInterrupt(), KeyboardInterrupt)):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(os, name, lambda *_, error=error: (_ for _ in ()).throw(error))
            with pytest.raises(caught):
                fgp.save(small(mean=fgp.means.Zero()), path)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert_same(old, fgp.load(path), points(2))


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "folder"), (tmp_path / "no" / "m", "No such file"), (tmp_path / ("m" * 300), "")):
        with pytest.raises(fgp.DomainError, match=f"`path` must be a file that can be written.*{reason}"):
            fgp.save(small(), path)
    if os.getuid():
        tmp_path.chmod(0o500)
        with pytest.raises(fgp.DomainError, match="Permission"):
            fgp.save(small(), tmp_path / "m")


def test_equal_models_give_equal_files_and_saving_again_changes_nothing(tmp_path: Path) -> None:
    posterior = warped()
    first = saved(posterior, tmp_path / "first").read_bytes()
    loaded = fgp.load(tmp_path / "first", {KEYS[0]: Bend(), KEYS[1]: Total()})
    assert saved(loaded, tmp_path / "second").read_bytes() == first


@pytest.mark.parametrize("options", [{}, {"seed": 7, "deterministic": True}], ids=str)
@pytest.mark.parametrize("route", ["stored", "recomputed"])
def test_a_posterior_without_a_factor_comes_back(tmp_path: Path, route: str, options: dict[str, Any]) -> None:
    """By iterative solves: no factor in the file; solves go on with the same method and the same draws."""
    gp = fgp.GP(fgp.kernels.Matern(1.5))
    x, y = points(60), points(60, 1, seed=1)[:, 0]
    posterior = gp.condition(x, y, plan=fgp.plan(gp, n=60, d=D, route=route), **options)
    path = saved(posterior, tmp_path / "m")
    with safe_open(path, "pt") as file:
        assert {"factor", "jitter"}.isdisjoint(file.keys())
    loaded = fgp.load(path)
    assert loaded.factor is None
    assert loaded.state.run == posterior.state.run
    assert loaded.plan == posterior.plan
    assert_same(posterior, loaded, points(5, seed=2))


def test_tiles_that_no_longer_fit_are_recomputed(tmp_path: Path, set_free_memory: Callable[[int], int]) -> None:
    gp = fgp.GP(fgp.kernels.Matern(1.5))
    posterior = gp.condition(points(60), points(60, 1, seed=1)[:, 0], plan=fgp.plan(gp, n=60, d=D, route="stored"))
    path = saved(posterior, tmp_path / "m")
    x_test = points(5, seed=2)
    wanted = posterior.predict(x_test).variance
    for free, kept in ((4 * 60 * 60 + 1024, True), (4 * 60 * 60 - 1, False)):
        loaded = fgp.load(path)
        set_free_memory(free)
        assert torch.allclose(loaded.predict(x_test).variance, wanted, rtol=0.01)
        assert (loaded.state.solves.system.tiles is not None) == kept
        events = of_kind(loaded.report.events, EventKind.TILES_NOT_STORED)
        assert len(events) == (0 if kept else 1)
        assert loaded.plan == posterior.plan


def test_a_refined_posterior_goes_on_refining(tmp_path: Path) -> None:
    gp = fgp.GP(fgp.kernels.Matern(1.5))
    posterior = gp.condition(points(60), points(60, 1, seed=1)[:, 0], dtype=torch.float32)
    loaded = fgp.load(saved(posterior, tmp_path / "m"))
    x_test = points(5, seed=2)
    assert torch.equal(loaded.predict(x_test).variance, posterior.predict(x_test).variance)
    assert loaded.state.solves is not None


@pytest.mark.parametrize(("version", "outputs"), [("1", None), ("2", 2), ("3", None), ("4", 2)])
def test_files_of_older_formats_are_read(tmp_path: Path, version: str, outputs: int | None) -> None:
    """The first had no solves, and a plan of fewer fields; the second knew nothing of learning online, the third of the
    tolerance of solves, the fourth of noise of each output: outputs of one share it."""
    posterior = small()
    if outputs:
        noise = fgp.likelihoods.Gaussian(0.1, shared=True)
        gp = fgp.GP(fgp.kernels.Matern(1.5), fgp.means.Constant(outputs=2), noise, outputs=outputs)
        posterior = gp.condition(points(12), points(12, 2, seed=1))
    path = saved(posterior, tmp_path / "m")
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    texts = header.pop("__metadata__")
    config = json.loads(texts["config"])
    for name in ("outputs", "shared"):
        del config["likelihood"]["options"][name]
    del config["report"]["plan"]["factors"]
    if version < "3":
        del config["learned"]
    if version < "4":
        del config["solves"]["tolerance"]
    if version == "1":
        del config["solves"]
        since = ("distinct", "rank", "solver", "training", "training_bytes", "training_factor_passes", "training_rank")
        for name in since:
            del config["report"]["plan"][name]
    texts |= {"config": json.dumps(config), "format_version": version}
    del texts["sha256"]
    texts["sha256"] = container._seal(texts, header)
    text = json.dumps({"__metadata__": texts, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    loaded = fgp.load(path)
    assert_same(posterior, loaded, points(5, seed=2))
    assert (loaded.plan.training, loaded.plan.rank) == ("exact", 0)
    assert (loaded.gp.likelihood.outputs, loaded.gp.likelihood.shared) == (None, outputs is not None)
    fgp.save(loaded, path)
    assert fgp.load(path).gp.likelihood.shared == (outputs is not None)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="an open file has no name here")
def test_a_file_that_is_replaced_while_it_is_read_stays_what_it_was(tmp_path: Path) -> None:
    path, x = tmp_path / "model.safetensors", torch.rand(5, 1, dtype=torch.float64)
    gp = fgp.GP(fgp.kernels.RBF())
    fgp.save(gp.condition(x, x[:, 0]), path)
    with container.open_container(str(path)) as opened:
        fgp.save(gp.condition(x + 1.0, x[:, 0]), path)
        assert torch.equal(opened.tensor("x"), x)
    assert torch.equal(fgp.load(path).x, x + 1.0)


def test_an_update_replaces_the_sentence_of_an_update_in_a_file_from_before_events_were_typed() -> None:
    x = points(12)
    posterior = fgp.GP(fgp.kernels.RBF()).condition(x, x[:, 0])
    old = report_json(posterior.report) | {"events": ["online: 2 rows appended and 0 dropped", "moved 8 bytes"]}
    posterior.report.events[:] = json_report(old, 2).events
    assert str(posterior.report.events[0]) == "update: 2 rows appended and 0 dropped"
    kinds = [event.kind for event in posterior.append(x[:2] + 1.0, x[:2, 0]).report.events]
    assert kinds == [EventKind.NOTE, EventKind.UPDATED]


def test_no_rows_of_an_expanded_tensor_are_saved(tmp_path: Path) -> None:
    """Nothing, with a stride of 0, is contiguous too."""
    x = points(0)
    for gp in (fgp.GP(fgp.kernels.Matern()), fgp.GP(fgp.kernels.Matern(), fgp.means.Linear(torch.ones(D)))):
        posterior = gp.condition(x, x.new_zeros(1).expand(0))
        assert_same(posterior, fgp.load(saved(posterior, tmp_path / "none.safetensors")), points(2))
