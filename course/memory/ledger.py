"""The ledger: where every slot of a pool went, at one moment.

Five accounts, which always sum to the pool. The first split is the PagedAttention paper's
(Kwon et al., SOSP 2023, sec. 3.1 and Fig. 2), which asks of each slot: written, going to be
written, never going to be written, or lost between reservations?
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Ledger:
    """Where the slots of a pool are, in tokens or in bytes; averages may be fractions.

    live      slots with a token written in them
    reserved  slots held by a running request that it will still write
    internal  slots held by a running request that it never writes
    external  free slots that the next waiting request cannot use, although enough are free
    free      the other free slots

    Invariant: none is negative, and together they are the pool.
    """

    live: float
    reserved: float
    internal: float
    external: float
    free: float

    def __post_init__(self) -> None:
        # written out, and "not >=" rather than "<", so that NaN is caught too
        sound = self.live >= 0 and self.reserved >= 0 and self.internal >= 0
        if not (sound and self.external >= 0 and self.free >= 0):
            bad = {name: value for name, value in self.as_dict().items() if not value >= 0}
            raise ValueError(f"A ledger cannot hold {bad}: every account is 0 or more.")

    @property
    def pool(self) -> float:
        """All slots: the sum of the five accounts."""
        return self.live + self.reserved + self.internal + self.external + self.free

    @property
    def held(self) -> float:
        """Slots that running requests hold, written or not."""
        return self.live + self.reserved + self.internal

    @property
    def wasted(self) -> float:
        """Slots that hold nothing and that nobody else can have now."""
        return self.reserved + self.internal + self.external

    def as_dict(self) -> dict[str, float]:
        """The five accounts by name, in the order of the class."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def shares(self) -> dict[str, float]:
        """The five accounts as shares of the pool, between 0 and 1; an empty pool gives zeros."""
        pool = self.pool
        return {name: value / pool if pool else 0.0 for name, value in self.as_dict().items()}

    def scaled(self, factor: float) -> "Ledger":
        """The same ledger in another unit, for example ``scaled(kv_bytes_per_token(shape))``."""
        if not (math.isfinite(factor) and factor > 0):
            raise ValueError(f"factor is {factor}: a change of unit needs a number above 0.")
        return Ledger(*(value * factor for value in self.as_dict().values()))


@dataclass(frozen=True)
class Holding:
    """What one running request holds, in slots.

    ``written`` tokens are in memory now; ``final`` will be when it finishes; ``held`` slots are
    its own, whether it uses them or not.
    """

    written: int
    final: int
    held: int

    def __post_init__(self) -> None:
        if not 0 <= self.written <= min(self.final, self.held):
            raise ValueError(
                f"A request with {self.written} tokens written, {self.final} at its end and "
                f"{self.held} slots held: it cannot have written more than either of the others."
            )


def take_ledger(
    pool_tokens: int,
    holdings: Iterable[Holding],
    next_need: int | None = None,
    next_fits: bool = True,
) -> Ledger:
    """The ledger of a pool of ``pool_tokens`` slots and the requests that hold parts of it.

    A request may hold fewer slots than it will have tokens, when it gets them little by little.

    ``next_need`` is the number of slots that the next waiting request asks for (None: nobody
    waits) and ``next_fits`` says whether it could have them now. When it could not, although as
    many are free, then every free slot counts as external: the memory is there, in pieces too
    small. When too few are free, the pool is simply full. ValueError: more is held than there is.

    >>> take_ledger(64, [Holding(9, 28, 32), Holding(5, 27, 32)])
    Ledger(live=14, reserved=41, internal=9, external=0, free=0)
    >>> take_ledger(64, [Holding(9, 28, 28), Holding(5, 27, 27)], next_need=8, next_fits=False)
    Ledger(live=14, reserved=41, internal=0, external=9, free=0)
    """
    live = reserved = internal = 0
    for holding in holdings:
        live += holding.written
        reserved += min(holding.held, holding.final) - holding.written
        internal += max(0, holding.held - holding.final)
    free = pool_tokens - live - reserved - internal
    if free < 0:
        raise ValueError(
            f"The requests hold {pool_tokens - free} slots of a pool of {pool_tokens}: "
            "no slot belongs to two requests."
        )
    stuck = next_need is not None and not next_fits and next_need <= free
    return Ledger(live, reserved, internal, free if stuck else 0, 0 if stuck else free)
