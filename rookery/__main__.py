"""`python -m rookery`, which is the command `rookery`."""

from rookery.cli import main

if __name__ == "__main__":
    main()
