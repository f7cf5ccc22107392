"""What people ask of the data plane: how a subscription stands, why it waits, and what became of a message."""
