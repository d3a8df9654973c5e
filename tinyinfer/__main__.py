"""`python -m tinyinfer` is the `tinyinfer` command."""

import sys

from .cli import main

sys.exit(main())
