"""`python -m fencegate`: the same as the command."""

from fencegate.cli import main

if __name__ == "__main__":
    main()
