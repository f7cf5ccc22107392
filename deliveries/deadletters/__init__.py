"""Dead letters: forwarding to the dead-letter topic, and what people do with them afterwards."""
