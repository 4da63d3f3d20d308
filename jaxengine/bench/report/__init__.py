"""`jaxengine report`: what an accelerator's owner can run and send, so that claims about it can be checked.

parts     what is measured, each part in a process of its own: a crash of one leaves the others
run       starts the parts, one at a time, since a device belongs to one process
privacy   takes out whatever tells where and by whom it was run
page      the report as a page
"""
