"""Several commands of Flower's command line in one process, because importing it is slow."""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Run commands, given as a JSON list of lists of words, one by one until one fails."""
    from flwr.cli.app import app

    for words in json.loads(sys.argv[1]):
        app(words, standalone_mode=False)


if __name__ == "__main__":
    main()
