"""Vector-Jacobian products, beside torch's own."""

import torch

from flashgp.foundations.transforms import vector_jacobian


def test_vector_jacobian_is_autograds() -> None:
    """Of several outputs, one of them a leaf; None for an input that none depends on."""
    a, b, unused = (torch.rand(4, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    outputs = (a.exp() @ b.mT, b.sum(), a)
    cotangents = [torch.rand_like(out) for out in outputs]
    wanted = torch.autograd.grad(outputs, [a, b, unused], cotangents, retain_graph=True, allow_unused=True)
    with torch.no_grad():
        found = vector_jacobian(list(zip(outputs, cotangents, strict=True)), [a, b, unused])
    assert found[2] is None is wanted[2]
    assert all(torch.equal(one, two) for one, two in zip(found[:2], wanted[:2], strict=True))
