"""What `LLM` does with its engine between requests, with vLLM's names: other weights, sleep, an empty cache, traces, counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxengine.api.checks import WeightSource, check_level, check_tags, weight_source

if TYPE_CHECKING:
    from jaxengine.front.inline_client import InlineClient
    from jaxengine.startup.engine import HostedEngine


class OperationMethods:
    """The base of `LLM` that has these methods."""

    _client: InlineClient
    _engine: HostedEngine

    def start_profile(self) -> None:
        """Begin a trace of device and host, in the directory that the option `profile` names.

        Raises:
            RequestError: the engine was started without it, or a trace is running.
        """
        self._client.profile(begin=True)

    def stop_profile(self) -> None:
        """End the trace and write it.

        Raises:
            RequestError: none is running.
        """
        self._client.profile(begin=False)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, for example between measurements. False when requests still hold some of them."""
        return self._client.reset_prefix_cache()

    def sleep(self, level: int = 1) -> None:
        """Give the device's memory back until `wake_up`; the KV cache is lost. Nothing compiles then or afterwards.

        At level 1 the weights are kept on the host. At level 2 they are dropped, and come back from the checkpoint with `wake_up`
        or by `update_weights`, which may come before it. At level 0 nothing is given back and nothing computed.

        Raises:
            RequestError: there is no such level.
        """
        check_level(level)
        self._client.sleep(level)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take the device's memory again: the weights as they were, an empty cache.

        `tags` are `weights`, `kv_cache`, or both in two calls: a trainer may need the memory of the cache until its weights are
        handed over. Weights that were dropped are read again, and are then those of the checkpoint used last.

        Raises:
            RequestError: a tag that is none.
        """
        self._client.wake(check_tags(tags))

    def update_weights(self, weights: WeightSource, *, weight_version: str | None = None) -> None:
        """Use other weights of this model from now on. Cached prefixes are forgotten; nothing compiles.

        Parameters are replaced one after the other, quantised where the engine is, so the device never holds both. JAX arrays
        that lie on the devices as the parameters do are used without a copy: as long as they are, the caller must not donate or
        delete them. Of arrays some may be left out.

        Args:
            weights: a checkpoint's directory; arrays (NumPy's or JAX's) by the names of its tensors or of `get_weights`, as a
                mapping, a tree of mappings, or pairs; of a quantised cache the measured scales stay.
            weight_version: what outputs call them; by default they are counted, from the "0" of the start.

        Raises:
            CheckpointError: no such checkpoint, or names and shapes are not those of the model. Nothing was changed.
            RequestError: no such arrays. Nothing was changed.
            OverloadedError: the engine sleeps at level 1; wake up the weights first.
        """
        self._client.update(weight_source(weights), weight_version)

    def get_weights(self) -> dict[str, Any]:
        """The model's parameters by their paths, as JAX arrays: what a trainer in this process begins with.

        They are the engine's own, which it deletes when it is given others or sleeps; whoever wants to keep one copies it.
        """
        return dict(self._engine.weights())

    @property
    def weight_version(self) -> str:
        """The version of the weights in use."""
        return self._client.statistics.weight_version

    def get_metrics(self) -> dict[str, float]:
        """Counts since the start: requests, tokens, steps, preemptions, prefix cache, KV use, compilations after warm-up."""
        statistics = self._client.statistics
        stats = statistics.scheduler
        return {
            "num_requests_running": stats.num_running,
            "num_requests_waiting": stats.num_waiting,
            "num_preemptions": stats.num_preemptions,
            "num_steps": sum(count.steps for count in stats.shapes.values()),
            "num_computed_tokens": stats.num_tokens,
            "num_padded_tokens": stats.num_padded_tokens,
            "prefix_cache_queries": stats.prefix_cache_queries,
            "prefix_cache_hits": stats.prefix_cache_hits,
            "kv_cache_usage_perc": stats.kv_cache_usage,
            "num_compilations": statistics.num_compilations,
        }
