"""Where pages lie outside the process: stores of blocks by key, and what keys are made of.

host half     names pages (`contract/page_name.py`) and decides what moves
host store    their bytes in this host's memory, by block number
OuterStores   by name -> key, on I/O threads of its own   (`outer_stores.py`, `keys.py`)
BlockStore    by key: a directory, another engine         (`block_store.py`)
"""
