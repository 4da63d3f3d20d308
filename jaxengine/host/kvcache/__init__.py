"""The host's accounts of the paged KV cache. No JAX: pages are numbers here."""

from jaxengine.host.kvcache.ledger import Ledger, PrefixStats
from jaxengine.host.kvcache.pages import SINK, LedgerError
from jaxengine.host.kvcache.pool import PagePool

__all__ = ["SINK", "Ledger", "LedgerError", "PagePool", "PrefixStats"]
