"""PushHub as an emulator: one process without authentication, for development and tests."""
