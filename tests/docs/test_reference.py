"""Pages that are generated from the code are up to date."""

from pathlib import Path

from isonomy.config.reference import reference

DOCS = Path(__file__).parents[2] / "docs"


def test_the_configuration_page_is_up_to_date():
    assert (DOCS / "configuration.md").read_text() == reference(), (
        'write it again: python -c "from isonomy.config.reference import reference; '
        "open('docs/configuration.md', 'w').write(reference())\""
    )


def test_every_algorithm_has_a_page():
    from isonomy.algorithms import registry

    assert set(registry()) <= {p.stem for p in (DOCS / "algorithms").glob("*.md")}
