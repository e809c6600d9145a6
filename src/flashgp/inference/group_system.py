"""The covariance of the observations as a system whose work the ranks of a group share.

    GroupSystem   all rows on every rank, as predictions see them; a product is this rank's share of the pairs, summed
    GroupRows     this rank's share of the rows, as solvers see them: vectors, preconditioners and probes are of these

What is of size n d or n t (inputs, features, a block of right-hand sides) is on every rank; tiles of K that are kept,
the low rank and the vectors of conjugate gradients are shared.
"""

import torch
from torch import Tensor

from flashgp.foundations.contexts import entered
from flashgp.inference.system import CovarianceSystem
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.sharing import shared_operator
from flashgp.operators.stored import StoredTiles
from flashgp.processes.group import Group
from flashgp.processes.shares import Shares
from flashgp.solvers.contract import Index, System
from flashgp.solvers.group_space import GroupSpace


class GroupSystem(CovarianceSystem):
    """A = K + diag(noise) of all rows on every rank; each evaluates its share of the pairs, eq. (M-201).

    Args: operator, K of all rows; group; the others as `CovarianceSystem`, tiles of this rank's share.
    Cost: of a product, one pass over 1/ranks of the pairs and the sum of n t numbers over ranks.
    """

    def __init__(
        self,
        operator: CovarianceOperator,
        noise: Tensor,
        group: Group,
        *,
        stored: bool = False,
        tiles: StoredTiles | None = None,
    ) -> None:
        super().__init__(shared_operator(operator, group), noise, stored=stored, tiles=tiles)
        self.group = group

    @entered()
    def multiply(self, v: Tensor) -> Tensor:
        return self.group.sum(self.product(v)).addcmul_(self.noise.to(v.dtype).unsqueeze(-1), v)


class GroupRows(System):
    """The rows of a system that a solver of this rank has.

    Args: share, of which `product` is this rank's share of the pairs; group.
    """

    def __init__(self, share: CovarianceSystem, group: Group) -> None:
        self.share, self.group = share, group
        self.shares = Shares.even(share.count, group.size)
        self.space = self._space = GroupSpace(group, self.shares)
        self.noise = self.space.local(share.noise)
        self.count, self.device, self.workspace = len(self.noise), share.device, share.workspace

    def diagonal(self) -> Tensor:
        return self._space.local(self.share.diagonal())

    @entered()
    def multiply(self, v: Tensor) -> Tensor:
        part = self.group.sum_rows(self.share.product(self._space.everywhere(v)), self.shares)
        return part.addcmul(self.noise.to(v.dtype).unsqueeze(-1), v)

    def columns(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        return self.share.part(self._space.here, index).to_dense(dtype)

    def block(self, index: Index, dtype: torch.dtype) -> Tensor:
        return self.share.block(index, dtype)

    def blocks(self, index: Tensor) -> Tensor:
        return self.share.blocks(index)

    @property
    def has_scaled_inputs(self) -> bool:
        return self.share.has_scaled_inputs

    def scaled_inputs(self) -> Tensor | None:
        return self.share.scaled_inputs()

    def dense(self, dtype: torch.dtype) -> Tensor:
        raise NotImplementedError("no rank has a matrix of all rows")
