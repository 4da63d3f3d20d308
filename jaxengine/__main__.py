"""`python -m jaxengine` is the `jaxengine` command."""

import sys

from jaxengine.cli import main

sys.exit(main())
