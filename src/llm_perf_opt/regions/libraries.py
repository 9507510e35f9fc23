"""Ranges that libraries open around their own calls: CCCL's, NCCL's. They are no stages of the program."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from llm_perf_opt.regions.model import NCUProfileRegion

# Names of their NVTX domains, in small letters.
_DOMAINS = frozenset(
    ("cccl", "cub", "thrust", "nccl", "nvshmem", "cublas", "cublaslt", "cudnn", "cusparse", "cusolver")
)
# A recording may have lost the name of a domain; the names of the ranges tell as well.
_NAMES = re.compile(r"(cub|thrust)::|(nccl|nvshmem|cublas(Lt)?|cudnn|cusparse|cusolver\w\w)[A-Z]")


def is_library_range(region: NCUProfileRegion) -> bool:
    return region.domain.lower() in _DOMAINS or _NAMES.match(region.name) is not None


def library_regions(regions: Sequence[NCUProfileRegion], stages: Collection[str]) -> set[str]:
    """Keys of the regions to fold away: libraries' own and what is inside them, but no stage; none if that is all."""
    found: set[str] = set()
    for region in regions:  # parents come first
        if region.key not in stages and (region.parent in found or is_library_range(region)):
            found.add(region.key)
    return found if len(found) < len(regions) else set()
