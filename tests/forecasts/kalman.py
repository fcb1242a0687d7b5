"""Kalman's filter, and the smoother of Rauch, Tung and Striebel, in dense matrices: the reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class KalmanReference:
    """u_k+1 = M u_k + b + N(0, Q), y_k = H u_k + N(0, r I).

    Args:
        M: `(d, d)`.
        b: `(d,)`.
        Q: `(d, d)`.
        H: `(m, d)`.
        r: A variance.
    """

    M: Tensor
    b: Tensor
    Q: Tensor
    H: Tensor
    r: float

    def filter(
        self, mean: Tensor, covariance: Tensor, values: dict[int, Tensor], steps: int
    ) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
        """Moments of leads 0 to `steps` before and after the observations of that lead."""
        before, after = [], []
        for lead in range(steps + 1):
            if lead:
                mean, covariance = self.M @ mean + self.b, self.M @ covariance @ self.M.mT + self.Q
            before.append((mean, covariance))
            if lead in values:
                total = self.H @ covariance @ self.H.mT + self.r * torch.eye(len(self.H), dtype=torch.float64)
                gain = torch.linalg.solve(total, self.H @ covariance).mT
                mean = mean + gain @ (values[lead] - self.H @ mean)
                covariance = covariance - gain @ self.H @ covariance
            after.append((mean, covariance))
        return before, after

    def smooth(self, mean: Tensor, covariance: Tensor, values: dict[int, Tensor], steps: int) -> list[tuple[Tensor, Tensor]]:
        """Moments of leads 0 to `steps` given all observations."""
        before, after = self.filter(mean, covariance, values, steps)
        smoothed = [after[-1]]
        for lead in range(steps - 1, -1, -1):
            mean, covariance = after[lead]
            gain = torch.linalg.lstsq(before[lead + 1][1], self.M @ covariance).solution.mT
            later = smoothed[0]
            smoothed.insert(
                0,
                (
                    mean + gain @ (later[0] - before[lead + 1][0]),
                    covariance + gain @ (later[1] - before[lead + 1][1]) @ gain.mT,
                ),
            )
        return smoothed
