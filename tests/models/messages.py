"""Compare an error of `make_task` with a sentence, by the parts that carry its meaning."""

import re

import pytest

from isonomy.models import make_task

MEANING = re.compile(
    r"'[^']*'"  # names and values in quotes
    r"|\[[^\]]*\]"  # shapes
    r"|\w+ = \w+|\w+(?:\.\w+)+|\w+_\w+|[A-Z][a-z]+[A-Z]\w*"  # options and names in code
    r"|\d+"
)


def says(kind, sentence, *args, **kwargs):
    """The error says what the sentence says: its names, values and shapes, and a remedy."""
    with pytest.raises(kind) as caught:
        make_task(*args, **kwargs)
    text = str(caught.value)
    missing = [part for part in MEANING.findall(sentence) if part not in text]
    assert not missing, text
    assert (";" in sentence) == (";" in text), text
    assert "\n" not in text
