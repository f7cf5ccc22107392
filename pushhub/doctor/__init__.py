"""`pushhub doctor`: looks at everything that an installation depends on, and says what to do about each fault."""

#: In place of PUSHHUB_SECRET_KEY where nothing was started yet.
NOTHING_STARTED = "not used: nothing was started, and this creates no files"
