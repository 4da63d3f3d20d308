"""Pages between engines over TCP, and through shared memory on one machine.

the engine that computes                      the engine that fetches
exports.py   a store that lays blocks out     peer_store.py   a store that asks
shelf.py     by key, in a ring                peer.py         one other engine, and what becomes of it
ring.py      of memory                        ring.py         the same memory, on one machine
server.py    answers
             messages.py                      what is asked
             session.py                       between two that know the same secret
"""
