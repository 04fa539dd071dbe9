"""The command `fencegate`, and `python -m fencegate`: loads the command line, which takes a moment."""

import sys


def main() -> None:
    """Run the command line; an interrupt that comes while it is loaded ends it as one that comes later does."""
    try:
        from fencegate.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
