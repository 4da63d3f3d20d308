"""The host's accounts of the paged KV cache. No JAX: pages are numbers here."""

from jaxengine.kvcache.ledger import Ledger, PrefixStats
from jaxengine.kvcache.pages import SINK, LedgerError
from jaxengine.kvcache.pool import PagePool

__all__ = ["SINK", "Ledger", "LedgerError", "PagePool", "PrefixStats"]
