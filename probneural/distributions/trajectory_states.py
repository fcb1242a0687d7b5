"""The states of a roll-out that are kept, so that others are found again in a bounded memory."""

from __future__ import annotations

from collections import deque

from jaxtyping import Float
from torch import Tensor


class KeptStates:
    """States by lead: all of them where they fit into a budget, else some from which the others follow.

    To go on from lead l, the `history` states up to l are needed. So whole windows are kept, evenly spread over the leads,
    and the latest window, from which the next lead follows.

    Args:
        start: States at leads 1 - history to 0.
        steps: The largest lead.
        budget: Bytes that may be kept beside start and latest window.

    Attributes:
        every: Leads from one kept window to the next; 1 where all are kept.
    """

    def __init__(self, start: list[Float[Tensor, "s n c *grid"]], *, steps: int, budget: int) -> None:
        self.history = len(start)
        self._kept = dict(enumerate(start, 1 - len(start)))
        self._latest: deque[tuple[int, Tensor]] = deque(maxlen=self.history)
        room = max(0, budget // max(1, start[0].numel() * start[0].element_size()))
        windows = room // self.history
        self.every = 1 if steps <= room else steps + self.history if windows == 0 else -(-steps // windows)

    def put(self, lead: int, state: Float[Tensor, "s n c *grid"]) -> None:
        """Add a state; whether it is kept follows from its lead."""
        self._latest.append((lead, state))
        if (-lead) % self.every < self.history:
            self._kept[lead] = state

    def get(self, lead: int) -> Float[Tensor, "s n c *grid"] | None:
        """The state at a lead, or None if it is not kept."""
        return dict(self._latest).get(lead, self._kept.get(lead))

    def before(self, lead: int) -> tuple[int, list[Float[Tensor, "s n c *grid"]]]:
        """The largest lead up to this one that can be gone on from, and the window of states up to there."""
        for last in range(lead, -1, -1):
            window = [self.get(number) for number in range(last + 1 - self.history, last + 1)]
            found = [state for state in window if state is not None]
            if len(found) == self.history:
                return last, found
        raise AssertionError("the start is always kept")

    @property
    def bytes(self) -> int:
        """Bytes of all states that are held, the start's among them."""
        held = {
            id(state): state.numel() * state.element_size() for state in (*self._kept.values(), *dict(self._latest).values())
        }
        return sum(held.values())
