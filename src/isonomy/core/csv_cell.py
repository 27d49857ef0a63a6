"""A text as a cell of a CSV file that spreadsheets show as it is."""

from __future__ import annotations


def csv_cell(text: str) -> str:
    """The text; if a spreadsheet would run it as a formula, an apostrophe comes first.

    Numbers stay as they are.

    >>> csv_cell("=HYPERLINK(A1)"), csv_cell("-1.5"), csv_cell("left-handed")
    ("'=HYPERLINK(A1)", '-1.5', 'left-handed')
    """
    if not text.startswith(("=", "+", "-", "@", "\t", "\r")):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
