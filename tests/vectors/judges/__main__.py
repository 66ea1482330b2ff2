"""python -m tests.vectors.judges: what hack/conformance runs."""

import sys

from tests.vectors.judges.running import main

sys.exit(main(sys.argv[1:]))
