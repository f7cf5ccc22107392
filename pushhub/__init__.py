"""PushHub: the modules that every part may import, and the wiring that nothing imports."""
