"""`python -m course`. Where the packages are missing, the self-test still runs and says so."""

import subprocess
import sys
from pathlib import Path

try:
    from course.cli import main
except ModuleNotFoundError as missing:
    # A module of the course itself that is not found is a fault, not a missing package.
    if (missing.name or "course").partition(".")[0] == "course":
        raise
    home = Path(__file__).resolve().parents[1] / ".venv"
    theirs = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if theirs.exists() and home != Path(sys.prefix).resolve():
        # Set up already, and only started with another Python: go on with the right one.
        sys.exit(subprocess.call([theirs, "-m", "course", *sys.argv[1:]]))
    print(f"The course's packages are not installed here (no {missing.name}): run `make setup`.\n")
    if sys.argv[1:2] != ["doctor"]:
        sys.exit(1)
    from course.doctor import plain_main

    sys.exit(plain_main(sys.argv[2:]))

if __name__ == "__main__":
    main()
