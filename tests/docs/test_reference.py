"""Pages, and parts of pages, that are generated from the code are up to date."""

from pathlib import Path

import pytest

from isonomy.algorithms import registry
from isonomy.config.reference import option_table, reference, search_table
from isonomy.core.options import options_of
from isonomy.core.work import Work
from isonomy.postprocess import METHODS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_configuration_page_is_up_to_date():
    assert (DOCS / "configuration.md").read_text() == reference(), (
        'write it again: python -c "from isonomy.config.reference import reference; '
        "open('docs/configuration.md', 'w').write(reference())\""
    )


@pytest.mark.parametrize("name", registry())
def test_an_algorithms_page_lists_its_options(name):
    options = options_of(registry()[name])
    page = (DOCS / "algorithms" / f"{name}.md").read_text()
    assert not options or option_table(options) in page, (
        "write its table again with isonomy.config.reference.with_option_table"
    )


def test_the_page_on_tuning_lists_the_search_spaces():
    page = (DOCS / "tune.md").read_text()
    for table in (search_table({"every method": Work}), search_table(registry())):
        assert table in page, "write it again with isonomy.config.reference.search_table"


@pytest.mark.parametrize("name", METHODS)
def test_the_page_of_post_processing_lists_the_options(name):
    page = (DOCS / "postprocessing.md").read_text()
    assert option_table(options_of(METHODS[name])) in page
