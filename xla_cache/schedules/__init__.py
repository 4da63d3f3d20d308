"""A tool: what a program takes by the TPU compiler's final schedules, read from its dump."""
