"""What the course needs and what it was tested with, read from its own files.

Standard library only: the set-up reads this before anything is installed, and the self-test even
when nothing is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "dev,notebooks,test"


def normal_name(name: str) -> str:
    """The one spelling of a package's name: ``"Typing_Extensions"`` -> ``"typing-extensions"``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_requirement(line: str) -> tuple[str, str, str]:
    """``"triton>=3.6,<3.8; marker"`` -> (name, range, marker), without extras."""
    requirement, _, marker = line.partition(";")
    match = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*(.*)", requirement)
    if match is None:
        raise ValueError(f"not a requirement: {line!r}")
    return normal_name(match.group(1)), match.group(2).replace(" ", ""), marker.strip()


def version_tuple(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``"2.13.0+cpu"`` -> (2, 13, 0)."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, numbers.group().split("."))) if numbers else ()


def in_range(version: str, specifier: str) -> bool:
    """Whether a release satisfies a range of ``>=``, ``<`` and ``==``, all that the course uses."""
    have = version_tuple(version)
    for clause in filter(None, specifier.split(",")):
        match = re.match(r"(>=|<|==)(.+)", clause)
        if match is None:
            raise ValueError(f"cannot read the version range {clause!r}")
        limit = version_tuple(match.group(2))
        size = max(len(have), len(limit))
        a, b = ((t + (0,) * (size - len(t))) for t in (have, limit))
        if not {">=": a >= b, "<": a < b, "==": a == b}[match.group(1)]:
            return False
    return True


def applies(marker: str) -> bool:
    """Whether a requirement is for this system; ``platform_system`` is the one marker in use."""
    match = re.fullmatch(r"platform_system\s*==\s*['\"](\w+)['\"]", marker)
    if marker and match is None:
        raise ValueError(f"cannot read the marker {marker!r}")
    systems = {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}
    return match is None or systems.get(sys.platform) == match.group(1)


def project(root: Path = ROOT) -> dict:
    """pyproject.toml as a dictionary."""
    import tomllib  # here, because Python 3.11 is the first to have it

    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def wanted_packages(root: Path = ROOT, extras: str = EXTRAS) -> dict[str, str]:
    """Name -> version range of each direct dependency that applies on this system."""
    table = project(root)["project"]
    lines = list(table.get("dependencies", []))
    for extra in filter(None, extras.split(",")):
        lines += table.get("optional-dependencies", {}).get(extra, [])
    return {name: spec for name, spec, marker in map(parse_requirement, lines) if applies(marker)}


def pins(root: Path = ROOT) -> dict[str, str]:
    """Name -> version that the course was tested with, from constraints.txt."""
    path = root / "constraints.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    stripped = filter(None, (line.split("#")[0].strip() for line in lines))
    return {name: spec.removeprefix("==") for name, spec, _ in map(parse_requirement, stripped)}
