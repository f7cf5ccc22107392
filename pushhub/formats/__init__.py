"""How the console writes dates and times: the same in every language, with seconds and the zone."""
