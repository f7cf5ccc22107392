"""`python -m pushhub.doctor`, where there is no command `pushhub`, as in the image."""

from __future__ import annotations

import sys

from pushhub.doctor.command import main

sys.exit(main(sys.argv[1:]))
