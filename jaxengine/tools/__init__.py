"""What the command line does that is not serving."""
