"""Closed forms of papers' analyses, to check claims against and to reckon with."""
