"""PushHub: the modules that every part may import, and the wiring that nothing imports."""

#: The version of all of PushHub, by semantic versioning; pyproject.toml reads it here.
__version__ = "0.2.0"
