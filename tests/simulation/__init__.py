"""A deterministic simulation of the front, its engines and the network between them: one seed is one history, to the last bit.

    scenario.py    what happens: sizes, clients and faults, all drawn from the seed
    world.py       runs one: the parts wired together under one clock; checks what each client got and what is left behind
    event_loop.py  asyncio with simulated time and a seeded order of ready callbacks
    network.py     pipes that delay, keep order, pickle, and lose what was under way when an end dies
    engine.py      a process: the real EngineLoop, host, core, scheduler and ledger; a device of pages full of tokens
    clients.py     those who ask, read slowly, leave and come back
    oracle.py      every request's right answer, computed alone
    focus.py       scenarios in which a rare situation is likely
    shrink.py      the smallest scenario that still fails

`python -m tests.simulation --help` runs many seeds, or one again.
"""
