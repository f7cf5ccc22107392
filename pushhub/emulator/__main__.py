"""`python -m pushhub.emulator`, the same as `pushhub emulator`."""

from __future__ import annotations

import sys

from pushhub.emulator.command import main

sys.exit(main(sys.argv[1:]))
