"""The state of the data plane in words: a subscription's status, why it waits, and what happened to a message."""
