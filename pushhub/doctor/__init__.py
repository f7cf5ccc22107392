"""`pushhub doctor`: looks at everything that an installation depends on, and says what to do about each fault."""
