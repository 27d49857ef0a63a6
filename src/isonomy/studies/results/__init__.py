"""Results of presets as data, and what the documentation shows of them.

`isonomy reproduce PRESET --results FOLDER` keeps one row per method, setting and seed in
FOLDER/PRESET.json (`rows`), as the runs end (`while_running`). A page of the documentation marks
where a table (`tables`), a sentence on a lead or a picture (`figures`) belongs, and
`python -m isonomy.studies.results PAGES RESULTS` writes what is between the marks (`pages`).
"""

from isonomy.studies.results.rows import Row, keep, origin, read, rows_of
from isonomy.studies.results.while_running import keeping

__all__ = ["Row", "keep", "keeping", "origin", "read", "rows_of"]
