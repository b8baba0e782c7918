"""`python -m course`. Where the packages are missing, the self-test still runs and says so."""

import sys

try:
    from course.cli import main
except ModuleNotFoundError as missing:
    # A module of the course itself that is not found is a fault, not a missing package.
    if (missing.name or "course").partition(".")[0] == "course":
        raise
    print(f"The course's packages are not installed here (no {missing.name}): run `make setup`.\n")
    if sys.argv[1:2] != ["doctor"]:
        sys.exit(1)
    from course.doctor import plain_main

    sys.exit(plain_main(sys.argv[2:]))

if __name__ == "__main__":
    main()
