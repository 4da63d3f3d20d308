"""Pages for people: a playground to talk to the model, a dashboard that shows the engine, and the two routes of their data."""
