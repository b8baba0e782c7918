"""Memory policies and what they waste: ledger, allocators, a simulated server, prefix hits."""

from course.memory.arena import (
    Arena,
    Move,
    external_fragmentation,
    smallest_refused,
    unusable_share,
)
from course.memory.buddy import BuddyArena
from course.memory.caching import CacheStats, CachingAllocator
from course.memory.emptiness import Emptiness, emptiness
from course.memory.ledger import Holding, Ledger, take_ledger
from course.memory.policies import (
    POLICY_NAMES,
    Contiguous,
    Paged,
    Policy,
    Slab,
    make_policy,
)
from course.memory.prefix_hits import PrefixHits, hit_curve, prefix_hits
from course.memory.simulate import Simulation, Step, simulate, steps
from course.memory.slab import SlabAllocator
from course.memory.trace import Outcome, play, random_operations

__all__ = [
    "POLICY_NAMES",
    "Arena",
    "BuddyArena",
    "CacheStats",
    "CachingAllocator",
    "Contiguous",
    "Emptiness",
    "Holding",
    "Ledger",
    "Move",
    "Outcome",
    "Paged",
    "Policy",
    "PrefixHits",
    "Simulation",
    "Slab",
    "SlabAllocator",
    "Step",
    "emptiness",
    "external_fragmentation",
    "hit_curve",
    "make_policy",
    "play",
    "prefix_hits",
    "random_operations",
    "simulate",
    "smallest_refused",
    "steps",
    "take_ledger",
    "unusable_share",
]
