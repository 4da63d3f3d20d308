"""Blocks as files in a directory that engines of a host share, or hosts that mount it.

    DIRECTORY/kv-blocks/secret           what keys are made with (`directory.py`)
    DIRECTORY/kv-blocks/ab/c/abc...      a block by its key in hexadecimal (`block_file.py`)
    DIRECTORY/kv-blocks/aside/...        files that are being written, and those that a killed writer left

Engines share no lock and no list: a file is there or it is not, and its time of change is when it was last of use.
"""
