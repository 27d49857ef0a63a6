"""Flower's command line, several commands in one process: nearly all of its time is importing."""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Run commands, a JSON list of lists of words, one after another until one fails."""
    from flwr.cli.app import app

    for words in json.loads(sys.argv[1]):
        app(words, standalone_mode=False)


if __name__ == "__main__":
    main()
