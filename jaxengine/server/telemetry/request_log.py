"""What is asked, in the log: only where an operator wants it, for it holds what users wrote."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from jaxengine.contract.request import Request
from jaxengine.server.service import Service

logger = logging.getLogger("jaxengine")


def log_requests(requests: Sequence[Request], service: Service) -> None:
    """One line per request, with `enable_log_requests`; its text is cut to `max_log_len` characters."""
    api = service.options.api
    if not api.enable_log_requests:
        return
    for request in requests:
        text = "" if request.prompt is None else repr(request.prompt[: api.max_log_len])
        logger.info(
            "request %s: prompt %s (%d tokens), %s",
            request.request_id,
            text,
            len(request.prompt_token_ids),
            request.sampling if request.pooling is None else request.pooling,
        )
