"""`python -m isonomy`: the command line."""

from isonomy.cli import main

if __name__ == "__main__":
    main()
