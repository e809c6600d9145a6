"""Laws that every kind of state keeps: with all rows it is exact, it refuses what it says, learns rows as if it had
them, is a value that nobody else changes, and is what its file says."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, NotPositiveDefiniteError, ShapeError
from inference.plain_gp import F64, data, model

KINDS: dict[str, dict[str, Any]] = {
    "float64 factor": {},
    "float32 factor": {"dtype": torch.float32},
    "solves": {"solver": "cg", "tolerance": 1e-9},
    "outputs": {},
    "full scale": {"approximation": "full_scale", "inducing": 6},
    "inducing points": {"approximation": "sparse"},
    "rows that are read": {},
}
APPROXIMATE = ("full scale", "inducing points", "rows that are read")
X, Y = data(40)
AT = data(7, seed=5)[0]


def prior_of(kind: str) -> fgp.GP:
    if kind == "outputs":
        return fgp.GP(model().kernel, likelihood=fgp.likelihoods.Gaussian([0.05, 0.2], outputs=2), outputs=2)
    return model()


def conditioned(kind: str, rows: int = 40, given: tuple[Any, ...] = (), gp: fgp.GP | None = None) -> fgp.Posterior:
    x, y, points = given or (*(part[:rows] for part in new_rows(kind, 0)), X[:10])
    gp, options = gp or prior_of(kind), KINDS[kind]
    if kind == "rows that are read":
        return gp.condition([(x[i : i + 13], y[i : i + 13]) for i in range(0, rows, 13)], inducing=points)
    if kind == "inducing points":
        return gp.condition(x, y, inducing=points, **options)
    if kind == "full scale":
        return gp.condition(x, y, neighbours=rows, **options)
    return gp.condition(x, y, **options)


def new_rows(kind: str, first: int) -> tuple[Tensor, Tensor]:
    y = Y[first:]
    return X[first:], torch.stack([y, y.exp()], 1) if kind == "outputs" else y


def near(found: Tensor, wanted: Tensor, off: float) -> None:
    torch.testing.assert_close(found, wanted, rtol=off, atol=off * float(wanted.abs().max()))


LAWS_OF_ROWS = ("plain", "repeats", "row variance", "outputs")
EXACT: dict[str, tuple[dict[str, Any], float]] = {
    "float32 factor": ({"dtype": torch.float32}, 1e-4),
    "solves": ({"solver": "cg", "tolerance": 1e-6}, 1e-2),  # of solves variances are inexact
    "full scale": ({"approximation": "full_scale", "inducing": 6}, 1e-9),
    "vecchia": ({"approximation": "full_scale", "inducing": 0}, 1e-9),
    "inducing points": ({"approximation": "sparse"}, 1e-5),  # their floor of 1e-8
    "rows that are read": ({}, 1e-5),
}


@pytest.mark.parametrize("of_rows", LAWS_OF_ROWS)
@pytest.mark.parametrize("kind", EXACT)
def test_with_all_rows_as_points_or_neighbours_it_is_exact(kind: str, of_rows: str) -> None:
    """(M-154), (M-160), (M-161), (M-167): every answer, with rows that repeat, known variances, and outputs."""
    (options, off), x, y, gp, more = EXACT[kind], X.clone(), Y, model(), ()
    if of_rows == "repeats":
        x[30:] = x[:10]
    elif of_rows == "row variance":
        more = (torch.linspace(0.01, 0.4, 40, dtype=F64),)
        gp = fgp.GP(gp.kernel, gp.mean, fgp.likelihoods.Gaussian(0.07, row_variance=more[0]))
    elif of_rows == "outputs":
        gp = fgp.GP(gp.kernel, likelihood=fgp.likelihoods.Gaussian(0.07, shared=True), outputs=2)
        y = torch.stack([Y, Y.exp()], 1)
    exact = gp.condition(x, y)
    if kind == "rows that are read":
        alike = model() if more else gp
        found = alike.condition(list(zip(*(part.split(13) for part in (x, y, *more)), strict=True)), inducing=x)
    elif kind == "inducing points":
        found = gp.condition(x, y, inducing=x, **options)
    elif "approximation" in options:
        found = gp.condition(x, y, neighbours=exact.distinct, **options)
    else:
        found = gp.condition(x, y, **options)
    p, q = found.predict(AT), exact.predict(AT)
    near(p.mean, q.mean, min(off, 1e-5))
    for name in ("variance", "observation_variance"):
        near(getattr(p, name), getattr(q, name), off)
    near(p.covariance(), q.covariance(), off)
    near(p.log_prob(q.mean.detach() + 0.1), q.log_prob(q.mean.detach() + 0.1), 10 * off)
    near(found.log_marginal_likelihood(), exact.log_marginal_likelihood(), off)
    if found.can("leave_one_out") is None:
        for name in ("mean", "variance", "log_prob"):
            near(getattr(found.leave_one_out(), name), getattr(exact.leave_one_out(), name), 10 * off)
    if kind in APPROXIMATE:
        assert float(found.lost.nats) < 1e-4
    if found.can("bound") is None:
        value = float(exact.log_marginal_likelihood())
        assert found.bound.lower - 1e-5 * abs(value) <= value <= found.bound.upper + 1e-5 * abs(value)


@pytest.mark.parametrize("kind", ["float64 factor", "float32 factor", "outputs", "full scale", "inducing points"])
def test_leave_one_out_is_conditioning_on_the_others(kind: str) -> None:
    """(M-39), (M-40), (M-167); of full scale where all rows are neighbours."""
    left = conditioned(kind).leave_one_out()
    for i in (0, 17, 39):
        others = torch.arange(40) != i
        y = torch.stack([Y, Y.exp()], 1) if kind == "outputs" else Y
        gp, options = prior_of(kind), dict(KINDS[kind])
        if kind == "full scale":
            options["neighbours"] = 39
        elif kind == "inducing points":
            options["inducing"] = X[:10]
        p = gp.condition(X[others], y[others], **options).predict(X[i : i + 1])
        off = 1e-4 if kind == "float32 factor" else 1e-8
        near(left.mean[i], p.mean[0], off)
        near(left.variance[i], p.observation_variance[0], off)
        near(left.log_prob[i], p.log_prob(y[i : i + 1])[0], off)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_of_its_point_alone_and_moments_agree(kind: str) -> None:
    """Of approximations proper too: few neighbours, few points."""
    post = model().condition(X, Y, neighbours=9, **KINDS[kind]) if kind == "full scale" else conditioned(kind)
    off = 2e-2 if kind == "solves" else 1e-5 if kind == "float32 factor" else 1e-10
    whole, few = post.predict(AT), post.predict(AT[:4])
    near(few.mean, whole.mean[:4], 1e-12)
    near(few.variance, whole.variance[:4], off)
    joint = whole.covariance()
    near(few.covariance(), joint[..., :4, :4], off)
    diagonal = joint.diagonal(dim1=-2, dim2=-1)
    near(diagonal.mT if kind == "outputs" else diagonal, whole.variance, off)
    assert float(torch.linalg.eigvalsh(joint).min()) > -1e-10


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_the_points_are_differences(kind: str) -> None:
    post, points = conditioned(kind), AT[:3].clone().requires_grad_()
    f = post.paths(2, features=16, seed=0)
    answers = [lambda z: post.predict(z).mean, lambda z: post.predict(z).variance, f]
    for answer in answers[:1] + answers[2:] if kind == "solves" else answers:  # of solves variances are inexact
        (slope,) = torch.autograd.grad(answer(points).sum(), points)
        with torch.no_grad():
            for column in range(2):
                step = 1e-5 * torch.eye(2, dtype=F64)[column]
                ahead, behind = (answer(points.detach() + s * step) for s in (1.0, -1.0))
                for row in range(3):
                    axis = 1 if answer is f else 0
                    wanted = (ahead - behind).select(axis, row).sum() / 2e-5
                    torch.testing.assert_close(slope[row, column], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_functions_have_the_moments_of_predictions(kind: str) -> None:
    """(M-94), (M-155), (M-166): means and variances within five standard errors and the error of random features."""
    post, count = conditioned(kind), 2000
    values, p = post.paths(count, features=2048, seed=1)(AT), post.predict(AT)
    assert values.shape == (count, *p.mean.shape)
    assert bool(((values.mean(0) - p.mean).abs() < 5.0 * (p.variance / count).sqrt()).all())
    assert bool(((values.var(0) / p.variance - 1.0).abs() < 5.0 * (2.0 / count) ** 0.5 + 0.05).all())
    assert torch.equal(post.paths(3, seed=1)(AT), post.paths(3, seed=1)(AT))


@pytest.mark.parametrize("kind", KINDS)
def test_posteriors_that_go_on_from_one_do_not_see_each_other(kind: str) -> None:
    """Nor a copy what becomes of the original; each is what its rows make of it."""
    parent = conditioned(kind, 30).append(*(rows[:1] for rows in new_rows(kind, 30)))
    before = [parent.predict(AT).mean, parent.predict(AT).variance, parent.paths(2, seed=0)(AT)]
    x, y = new_rows(kind, 31)
    copies = [copy.deepcopy(parent), pickle.loads(pickle.dumps(parent))]
    children = [parent.append(x[i:], y[i:]) for i in (0, 4, 7)]
    off = 1e-2 if kind == "solves" else 1e-5 if kind == "float32 factor" else 1e-8
    for again in copies:
        near(again.predict(AT).mean, before[0], 1e-12)
        near(again.append(x, y).predict(AT).mean, children[0].predict(AT).mean, min(off, 1e-4))
    near(children[0].predict(AT).variance, conditioned(kind).predict(AT).variance, off)
    one_by_one = parent
    for part in zip(x.split([1, 1, 0, 7]), y.split([1, 1, 0, 7]), strict=True):
        one_by_one = one_by_one.append(*part)
    near(one_by_one.predict(AT).mean, children[0].predict(AT).mean, min(off, 1e-4))
    assert [one.count for one in (parent, *children)] == [31, 40, 36, 33]
    for found, wanted in zip((parent.predict(AT).mean, parent.predict(AT).variance, parent.paths(2, seed=0)(AT)),
                             before, strict=True):  # fmt: skip
        assert torch.equal(found, wanted)


def answers(post: fgp.Posterior) -> list[Tensor]:
    p = post.predict(AT)
    found = [p.mean, p.variance, p.covariance(), *p.interval(), p.sample(2, seed=1), post.paths(2, seed=0)(AT)]
    found.append(post.log_marginal_likelihood())
    if post.can("leave_one_out") is None:
        found += [post.leave_one_out().mean, post.leave_one_out().variance]
    return [one.detach().clone() for one in found]


def spoil(*values: Any) -> None:
    for value in values:
        with torch.no_grad():
            torch.as_tensor(value).fill_(torch.nan)


@pytest.mark.parametrize("arrays", [False, True], ids=["tensors", "arrays"])
@pytest.mark.parametrize("kind", [*KINDS, "fitted"])
def test_what_goes_in_and_what_comes_out_may_be_overwritten(kind: str, *, arrays: bool) -> None:
    """A posterior is a value: data, variances of rows and parameters that its user owns are written to, and all that it
    has given, and every answer has the same bits."""

    def made() -> tuple[fgp.Posterior, list[Any]]:
        own = [part.clone() for part in (*new_rows(kind, 0), X[:10])]
        rows, scale = torch.linspace(0.01, 0.2, 40, dtype=F64), torch.tensor([0.7, 1.9], dtype=F64)
        owned = [one.numpy() if arrays else one for one in (*own, rows, scale)]
        gp = prior_of(kind)
        if kind not in ("outputs", *APPROXIMATE):
            noise = fgp.likelihoods.Gaussian(0.07, row_variance=owned[3], row_weight=1.0 + rows.clone())
            gp = fgp.GP(fgp.kernels.Matern(1.5, torch.as_tensor(owned[4])) + fgp.kernels.Linear(), likelihood=noise)
        if kind == "fitted":
            return fgp.fit(gp, *owned[:2], starts=1, max_iterations=1).posterior, owned
        return conditioned(kind, given=tuple(owned[:3]), gp=gp), owned

    wanted = answers(made()[0])
    assert all(bool(one.isfinite().all()) for one in wanted)
    post, owned = made()
    prediction = post.predict(AT)
    variance = prediction.variance.clone()
    spoil(*owned)
    assert torch.equal(prediction.covariance().diagonal(dim1=-2, dim2=-1), wanted[2].diagonal(dim1=-2, dim2=-1))
    for name in ("x", "y", "noise", "residual", "inducing", "points"):
        if post.can(name) is None:
            spoil(getattr(post, name).detach())
    if kind not in APPROXIMATE:
        spoil(post.representer_weights)
    spoil(*post.gp.parameters(), prediction.mean, *prediction.interval())
    for found, expected in zip(answers(post), wanted, strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(prediction.variance, variance)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_rows_and_points_are_refused_and_change_nothing(kind: str) -> None:
    post, (x, y) = conditioned(kind, 33), new_rows(kind, 33)
    mean = post.predict(AT).mean
    for arguments, error, message in (
        ((x[:, :1], y), ShapeError, "`x`"), ((x, y[:3]), ShapeError, "`y`"), ((x * torch.nan, y), DomainError, "`x`"),
        ((x, y * torch.inf), DomainError, "`y`"), ((["a"], y[:1]), DomainError, "`x`"),
        ((x[0], y[:1]), ShapeError, "`x`"), ((x[None], y[None]), ShapeError, "`x`"),
        ((x, y[..., None]), ShapeError, "`y`"), ((x.to_sparse(), y), DomainError, "dense"),
        ((x * 1e200, y), (DomainError, NotPositiveDefiniteError), "square|`x` must be|positive definite"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            post.append(*arguments)
    for points, error in ((AT[:, :1], ShapeError), (AT * torch.nan, DomainError), (AT * 1e200, DomainError)):
        with pytest.raises(error, match="`x_test`"):
            post.predict(points).variance  # noqa: B018
    if kind in APPROXIMATE:
        with pytest.raises(DomainError, match="`variance`"):
            post.predict(AT, variance="sampled")
        with pytest.raises(ShapeError, match="x_test"):
            post.predict(AT[None])
    if kind in ("inducing points", "rows that are read"):
        with pytest.raises(DomainError, match="`row_variance`"):
            post.append(x, y, row_variance=y.square())
        with pytest.raises(DomainError, match="`representer_weights`"):
            post.representer_weights  # noqa: B018
    if post.can("replace") is None:
        with pytest.raises(ShapeError, match="one row for each new one"):
            post.replace([0], x[:2], y[:2])
        with pytest.raises(DomainError, match="at most as many rows as the posterior"):
            post.drop(range(30)).slide(x[:4], y[:4])
    assert torch.equal(post.predict(AT).mean, mean)
    assert post.append(x[:0], y[:0]) is post


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "rows that are read"])
def test_without_rows_it_is_the_prior_and_learns(kind: str) -> None:
    options = {name: value for name, value in KINDS[kind].items() if name != "inducing"}
    gp = prior_of(kind)
    y = torch.stack([Y, Y.exp()], 1) if kind == "outputs" else Y
    empty = gp.condition(X[:0], y[:0], **options)
    assert empty.count == 0
    torch.testing.assert_close(empty.predict(AT).mean, gp.mean_at(AT).detach().reshape(empty.predict(AT).mean.shape))
    prior = gp.kernel.operator(AT).diagonal().detach()
    near(empty.predict(AT).variance, prior.unsqueeze(-1).expand(-1, 2) if kind == "outputs" else prior, 1e-12)
    if kind == "full scale":
        with pytest.raises(DomainError, match="that has rows"):
            empty.append(X, y)
    else:
        near(empty.append(X, y).predict(AT).mean, gp.condition(X, y).predict(AT).mean, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_appending_is_conditioning_on_all_rows(kind: str) -> None:
    """eqs. (M-111), (M-175) and (M-176); of full scale where all rows are neighbours."""
    found, wanted = conditioned(kind, 33).append(*new_rows(kind, 33)), conditioned(kind)
    assert found.count == wanted.count == 40
    assert found.state.online.appended == 7
    off = {"solves": 1e-2, "float32 factor": 1e-5}.get(kind, 1e-8)  # of solves variances are inexact
    for name in ("mean", "variance"):
        torch.testing.assert_close(
            getattr(found.predict(AT), name), getattr(wanted.predict(AT), name), rtol=off, atol=off
        )


@pytest.mark.parametrize("appended", [False, True], ids=["conditioned", "appended"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_gives_back_every_bit(tmp_path: Path, kind: str, *, appended: bool) -> None:
    before = conditioned(kind, 33).append(*new_rows(kind, 33)) if appended else conditioned(kind)
    fgp.save(before, tmp_path / "m.safetensors")
    after = fgp.load(tmp_path / "m.safetensors")
    off = 0.0 if not appended else 1e-5 if kind == "float32 factor" else 1e-9  # an update leaves weights for later
    close = {"rtol": off, "atol": off}
    for name in ("mean", "variance"):
        torch.testing.assert_close(getattr(after.predict(AT), name), getattr(before.predict(AT), name), **close)
    torch.testing.assert_close(after.paths(2, seed=0)(AT), before.paths(2, seed=0)(AT), **close)
    assert (after.count, after.distinct, type(after.state)) == (before.count, before.distinct, type(before.state))
    assert after.state.online.appended == before.state.online.appended
    assert str(after.report) == str(before.report)


QUESTIONS: dict[str, tuple[Any, ...]] = {
    "append": (X[:2] + 9.0, Y[:2]), "drop": ([0, 3],), "slide": (X[:2] + 9.0, Y[:2]),
    "fantasize": (X[:3, None], Y[:3, None]),
    "replace": ([1], X[:1] + 9.0, Y[:1]), "refine": (1,), "leave_one_out": (), "leave_out": (X[:3], Y[:3]),
    "bracket": (), "importance": (), "log_marginal_likelihood": (), "paths": (2,), "predict": (AT,),
    "predict_seconds": (10,),
}  # fmt: skip
FIELDS = ("x", "y", "points", "residual", "noise", "lost", "bound", "inducing", "replicates", "batch_shape", "distinct")


def answer(post: fgp.Posterior, kind: str, question: str) -> Any:
    if question in FIELDS:
        return getattr(post, question)
    given = QUESTIONS[question]
    if kind == "outputs" and len(given) > 1:
        given = (*given[:-1], torch.stack([given[-1], given[-1]], -1))
    if question == "bracket" and kind == "rows that are read":
        given = ([(X, Y)],)
    return getattr(post, question)(*given)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_refused_raises_the_reason_and_all_else_answers(kind: str) -> None:
    post, refused = conditioned(kind), set()
    for question in (*QUESTIONS, *FIELDS):
        reason = post.can(question)
        if reason is None:
            answer(post, kind, question)
            continue
        refused.add(question)
        assert reason.startswith(f"`{question}` ")
        with pytest.raises(DomainError) as error:
            answer(post, kind, question)
        assert str(error.value) == reason
    exact_only = {"drop", "slide", "replace", "fantasize", "refine"}
    of_points = {"bound", "bracket", "leave_out"}
    assert (
        refused
        == {
            "float64 factor": {*of_points, "lost", "inducing"},
            "float32 factor": {*of_points, "lost", "inducing", "fantasize"},
            "solves": {*of_points, "lost", "inducing", "fantasize", "leave_one_out"},
            "outputs": {*of_points, "lost", "inducing"},
            "full scale": {*of_points, *exact_only},
            "inducing points": exact_only,
            "rows that are read": {*exact_only, "leave_one_out", "x", "y", "points", "residual"},
        }[kind]
    )


def test_a_question_that_no_posterior_has_is_an_error() -> None:
    with pytest.raises(DomainError, match="`question` must be a method or field of Posterior, got 'forget'"):
        conditioned("float64 factor").can("forget")


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_prior_gives_the_same_answers(kind: str) -> None:
    post = conditioned(kind)
    again = post.with_prior(post.gp)
    assert again.state is not post.state
    assert torch.equal(again.predict(AT).mean, post.predict(AT).mean)


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_what_an_approximation_loses_is_in_its_text(kind: str) -> None:
    post = conditioned(kind)
    assert "\nlost " in repr(post)
    assert float(post.lost.nats) >= 0.0
    assert str(post.lost) in repr(post)
    assert "\nlost " not in repr(conditioned("float64 factor"))
