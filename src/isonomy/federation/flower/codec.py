"""Messages as bytes: a tree's named arrays as safetensors, its structure and a header as JSON.

Nothing that is read is executed: there is no pickle, and only known classes are created. A
client's reply is unpacked only if it has the structure that was expected.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from isonomy.core import tree
from isonomy.core.tree import Tree

Header = dict[str, Any]
HEADER = 1 << 24  # the longest description of arrays that is accepted
ROOM = 1 << 16  # bytes that a message may have in addition to its numbers
_DEPTH = 64  # the deepest structure that is accepted


class MalformedError(ValueError):
    """Bytes that are not a message; the text says why."""


def pack(header: Header, value: Tree = ()) -> bytes:
    """A header and a tree as bytes."""
    arrays, shape = tree.pack(value)
    about = json.dumps({"header": header, "tree": shape}, separators=(",", ":"), allow_nan=False)
    # clones, because safetensors refuses tensors that share memory
    whole = {name: t.contiguous().clone() for name, t in arrays.items()}
    return bytes(save_tensors(whole, metadata={"isonomy": about}))


def most(like: Tree) -> int:
    """The most bytes that a message with a tree of this shape may take."""
    return tree.nbytes(like) + 512 * len(tree.leaves(like)) + ROOM


def header(content: bytes) -> Header:
    """The header alone."""
    return _about(content)[0]


def digest(content: bytes) -> str:
    """A hash of a message's tree: of its structure and all numbers, without the header."""
    shape = _about(content)[1]
    end = 8 + int.from_bytes(content[:8], "little")
    arrays = {k: v for k, v in json.loads(content[8:end]).items() if k != "__metadata__"}
    about = json.dumps([shape, arrays], sort_keys=True).encode()
    return hashlib.sha256(about + b"\n" + content[end:]).hexdigest()


def unpack(content: bytes, like: Tree = None) -> tuple[Header, Tree]:
    """Undo `pack`; with `like`, the tree must have its structure, and uses its containers."""
    head, shape = _about(content)
    if like is not None and shape != tree.pack(like)[1]:
        raise MalformedError("it has other parts than requested")
    try:
        arrays = load_tensors(content)
        value = tree.unpack(arrays, shape)
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise MalformedError(f"its arrays cannot be read ({type(error).__name__})") from None
    return head, value if like is None else tree.like(like, value)


def _about(content: bytes) -> tuple[Header, Any]:
    """Header and structure, from the description in front of the arrays."""
    try:
        length = int.from_bytes(content[:8], "little")
        if not 2 <= length <= min(HEADER, len(content) - 8):
            raise MalformedError("it has no description of its arrays")
        about = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["isonomy"])
        head, shape = about["header"], about["tree"]
    except MalformedError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError):
        raise MalformedError("its description cannot be read") from None
    if not isinstance(head, dict) or _depth(shape) > _DEPTH:
        raise MalformedError("its description is not one of a message")
    return head, shape


def _depth(shape: Any) -> int:
    """The depth of a structure, counted up to the limit."""
    level, depth = [shape], 0
    while level and depth <= _DEPTH:
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        depth += 1
    return depth
