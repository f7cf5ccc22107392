"""PushHub: the leaves that every room may use, and the wiring that nobody imports."""
