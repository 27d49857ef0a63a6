"""A client in a process of its own: it has its file, its number and two pipes, and nothing else.

Executed by test_tables_replies.py. Every line of standard input is a message, every line of
standard output a reply; both are JSON.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch

from isonomy.data.tables import Preprocessing, phases
from isonomy.data.tables.files import client_name, read


def main(path: Path, number: int) -> None:
    torch.set_num_threads(1)
    table, kept = read(path), None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["phase"] == "prepare":
            reply = prepared(Preprocessing.model_validate(asked["message"]), table, kept)
        else:
            client = phases.Client(number, client_name(path), table, kept)
            reply, kept = getattr(phases, asked["phase"])(asked["message"], client)
        sys.stdout.write(json.dumps(reply, allow_nan=False) + "\n")
        sys.stdout.flush()


def prepared(preprocessing, table, kept):
    """A digest of each tensor that the client made of its rows, which stay here."""
    order = np.argsort(kept, kind="stable")[int((kept < 0).sum()) :]
    schema = preprocessing.table
    parts = {
        "x": preprocessing.transform(table)[order],
        "y": schema.target(table)[0][order],
        "groups": schema.group_codes(table)[order],
    }
    return {name: digest(values) for name, values in parts.items()}


def digest(values):
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
