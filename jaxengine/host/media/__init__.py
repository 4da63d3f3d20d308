"""What prompts show, on the host's side: where items' embeddings lie on the device, and when they are encoded.

pool.py       the pages of embeddings: which item lies where, who holds it, and what is given up for others
launches.py   from items to launches of an encoder
encoders.py   what is to be encoded, in order, within a step's budget
shown.py      what one sequence's prompt shows, and how far its rows may reach
"""
