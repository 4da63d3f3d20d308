"""Adapters (LoRA) on the host's side: which are in its memory, and which lie in the device's slots.

shelf.py   the host's memory: adapters are read from their files beside the steps, and those unused for longest are let go
slots.py   the device's slots: which adapter lies where, who runs with it, and who has to wait for a slot
"""
