"""An operator and its recipe as a `LightningModule`, for programs that are built on Lightning; needs the extra `lightning`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from probneural.checks import check_module, check_positive, optional
from probneural.pairs import Dataset, FieldPairs, check_dataset
from probneural.training.loading import BatchOrder, unchanged
from probneural.training.losses import Loss
from probneural.training.optimizers import make_optimizer, make_schedule
from probneural.training.options import Optimization
from probneural.training.run import Objective


def lightning_module(
    operator: nn.Module, *, loss: Loss | None = None, learning_rate: float = 3e-3, optimization: Optimization | None = None
) -> Any:
    """Return a `LightningModule` with the training step of `pn.fit`.

    Lightning's trainer handles devices, precision, clipping and checkpoints. Fit units first:
    `operator.fit_normalizers(train)`.
    Batches are `FieldPairs`, as `pair_loader` makes them. The operator itself is trained.

    Args:
        operator: Any module from `(n, c, *grid)` to `(n, c', *grid)`.
        loss: Loss of predictions, targets and their grid; by default the relative L2 error.
        learning_rate: The schedule's peak.
        optimization: Optimisation settings, of which optimiser, decay and schedule are used.

    Raises:
        ArgumentError: If the operator is not a module, or the rate is not positive.
    """
    base: Any = optional("lightning", "lightning_module", extra="lightning").LightningModule
    rate = check_positive(learning_rate, "learning_rate")
    options = Optimization() if optimization is None else optimization

    class OperatorModule(base):
        def __init__(self) -> None:
            super().__init__()
            self.objective = Objective(check_module(operator, "operator"), loss, precision=None)

        def training_step(self, batch: FieldPairs, number: int) -> Tensor:
            value: Tensor = self.objective(batch)
            self.log("train", value, batch_size=len(batch))
            return value

        def validation_step(self, batch: FieldPairs, number: int) -> None:
            self.log("validation", self.objective(batch), batch_size=len(batch))

        def transfer_batch_to_device(self, batch: FieldPairs, device: torch.device, dataloader_idx: int) -> FieldPairs:
            return batch.to(device)

        def configure_optimizers(self) -> Any:
            trained: list[Tensor] = [parameter for parameter in self.parameters() if parameter.requires_grad]
            optimizer = make_optimizer(trained, learning_rate=rate, options=options)
            schedule = make_schedule(optimizer, steps=int(self.trainer.estimated_stepping_batches), options=options)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return OperatorModule()


def pair_loader(data: Dataset, *, batch_size: int = 20, seed: int | None = None) -> DataLoader[FieldPairs]:
    """Return a loader of batches of pairs, in the order of `pn.fit`.

    Args:
        data: Pairs.
        batch_size: Pairs of a batch.
        seed: Names the order; None for the order of the rows.
    """
    pairs = check_dataset(data)
    order = BatchOrder([len(pairs)], batch_size=batch_size, seed=seed)
    return DataLoader(_Rows(pairs), sampler=order, batch_size=None, collate_fn=unchanged)


class _Rows(torch.utils.data.Dataset[FieldPairs]):
    """Pairs by the number of their set, the first one, and rows."""

    def __init__(self, pairs: Dataset) -> None:
        self.pairs = pairs

    def __getitem__(self, batch: Any) -> FieldPairs:
        return self.pairs[torch.from_numpy(batch[1]).to(self.pairs.inputs.device)]
