"""`python -m isonomy.studies.results PAGES RESULTS`: write the generated parts of pages again."""

import sys

from isonomy.studies.results.pages import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
