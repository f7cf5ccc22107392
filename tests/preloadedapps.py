"""Sets Django up and imports what workers and servers need, in the process that tests/preloaded.py forks.

A test must not import this module.
"""

from __future__ import annotations

import gc
import os
import warnings
from importlib import import_module

import django

from tests.preloaded import MODULES

os.environ["DJANGO_SETTINGS_MODULE"] = "pushhub.settings"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    django.setup()
    for name in MODULES:
        import_module(name)
# Otherwise each fork's garbage collector looks through all of these objects, and writes to their pages.
gc.collect()
gc.freeze()
