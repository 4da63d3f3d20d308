"""Runs a model through the programs that serve: rows in buckets, pages, slots, chunked prompts, then decode one by one."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from buckets import Bucket, Grid
from jaxengine.contract.batch import Batch, SamplingSpec, SlotState, StepResult
from jaxengine.contract.media import SlotMedia
from jaxengine.contract.rows import Row, Rows, Sample, Score, Want
from jaxengine.device.layers.adapters import AdapterSpec
from jaxengine.device.layers.schemes.by_path import Schemes
from jaxengine.device.layers.sharding import ONE_DEVICE, share_layers, share_tokens
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.interface import Model
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.runtime.cache_layout import lay_out
from jaxengine.device.runtime.executables import Executables
from jaxengine.device.runtime.held_weights import HeldWeights
from jaxengine.device.runtime.launcher import allocate_state
from jaxengine.device.runtime.media_space import MediaSpace
from jaxengine.device.runtime.programs import all_programs
from jaxengine.device.runtime.runner import ModelRunner
from jaxengine.device.runtime.sampling_shapes import SampleShape
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.target import platform_of
from jaxengine.device.sampling import Variant
from jaxengine.device.weights.adapter_packing import Packer, has_slots
from jaxengine.device.weights.base_tensors import BaseTensors
from jaxengine.device.weights.named_arrays import NamedArrays
from jaxengine.device.weights.peft import read_adapter
from jaxengine.startup.program_context import PACKAGES, traced
from pallas_kernels import kv_storage_dtype
from tests.device.models.place import place
from xla_cache import ProgramCache, Store, device_fingerprint, environment, source_digests

PLATFORM = platform_of(jax.devices())
"""The one that tests run on; on a GPU (`JAX_PLATFORMS=cuda,cpu`) its kernels are what is compared."""
MIXED, DECODE = Bucket(8, 4), Bucket(4, 1)
EMBEDDING_PAGES, EMBEDDING_PAGE = 40, 4
KEPT = MIXED.tokens
EVERYTHING = SamplingSpec(temperature=0.0, seed=0, num_logprobs=-1)


class PagedModel:
    """A runner with a model's weights. Its sequences have the slots 1, 2, ... in the order of the prompts."""

    def __init__(
        self,
        hf_config: Mapping[str, Any],
        tensors: Mapping[str, np.ndarray],
        *,
        dtype: Any = jnp.float32,
        devices: int = 1,
        expert_parallel: bool = False,
        data: int = 1,
        page_size: int = 4,
        num_pages: int = 96,
        backend: str = "auto",
        quantization: str | None = None,
        adapters: AdapterSpec | None = None,
        targets: tuple[str, ...] | None = None,
        encoders: tuple[Bucket, ...] = (),
    ) -> None:
        """With `adapters` there are slots beside the modules that `targets` names (`adapter_packing.has_slots`).

        `encoders` are the shapes of a tower's launches; without such the model is one of texts.
        """
        programs = _programs(
            json.dumps(hf_config, sort_keys=True),
            jnp.dtype(dtype).name,
            devices,
            expert_parallel,
            data,
            page_size,
            num_pages,
            backend,
            quantization,
            adapters,
            targets,
            encoders,
            jax.config.jax_numpy_dtype_promotion,
        )
        self.config, self.space = programs.config, programs.space
        arrays = place(
            programs.model_class, self.config, tensors, self.space.parameters, Schemes.by_option(quantization)
        )
        pack = None
        if adapters is not None:
            pack = Packer(
                rules=programs.model_class.WEIGHTS,
                config=self.config,
                structs=self.space.graph.adapters,
                by_rank=adapters.by_rank(self.space.device_layout),
                base=BaseTensors(
                    programs.model_class.WEIGHTS,
                    tied=self.config.tie_word_embeddings,
                    open=lambda: NamedArrays(tensors),
                ),
            )
        self.runner = ModelRunner(
            self.space,
            programs.executables,
            HeldWeights(self.space, arrays),
            *allocate_state(self.space),
            read_adapter=None if pack is None else lambda path: (path, pack(read_adapter(path))),
        )
        self._steps = 0

    def logprobs(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seq: int,
        adapters: Sequence[int] | None = None,
        media: Sequence[SlotMedia | None] | None = None,
    ) -> list[np.ndarray]:
        """Log probabilities `[tokens, V]` after every token of whole prompts, cut into rows of `seq` tokens, or of a span.

        `adapters` are the slots that prompts go through, 0 being none. `media` is what they show.
        """
        self._begin([len(prompt) for prompt in prompts], adapters, media)
        waiting = [
            (owner, _row(owner + 1, prompt[start:end], start, Score(targets=(0,) * (end - start), sample=False)))
            for owner, prompt in enumerate(prompts)
            for start, end in _cut(len(prompt), seq, None if media is None else media[owner])
        ]
        found: list[list[np.ndarray]] = [[] for _ in prompts]
        while waiting:
            step = _as_many_as_fit(waiting, one_each=bool(self.space.cache.states))
            waiting = waiting[len(step) :]
            result = self._launch(MIXED, [row for _, row in step])
            owners = [owner for owner, row in step for _ in range(row.num_tokens)]
            for owner, report in zip(owners, result.logprobs, strict=True):
                assert report is not None
                values = np.empty(self.space.vocab_size, np.float32)
                values[report.top_ids] = report.top_logprobs
                found[owner].append(values)
        return [np.stack(values) for values in found]

    def greedy(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        *,
        seq: int,
        media: Sequence[SlotMedia | None] | None = None,
    ) -> list[list[int]]:
        """`count` greedy tokens after each prompt: prompts in rows of `seq` beside rows that decode, as many as fit a step."""
        self._begin([len(prompt) + count for prompt in prompts], None, media)
        cuts = [
            dict(_cut(len(prompt), seq, None if media is None else media[owner]))
            for owner, prompt in enumerate(prompts)
        ]
        outputs: list[list[int]] = [[] for _ in prompts]
        done = [0] * len(prompts)
        while any(len(output) < count for output in outputs):
            rows: list[tuple[int, Row]] = []
            for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
                if done[i] < len(prompt):
                    part = prompt[done[i] : cuts[i][done[i]]]
                    last = done[i] + len(part) == len(prompt)
                    rows.append((i, _row(i + 1, part, done[i], Sample() if last else None)))
                elif len(output) < count:
                    rows.append((i, Row(i + 1, None, 1, len(prompt) + len(output) - 1, Sample())))
            step = _as_many_as_fit(rows)
            decoding = len(step) <= DECODE.batch and all(row.tokens is None for _, row in step)
            result = self._launch(DECODE if decoding else MIXED, [row for _, row in step])
            sampled = iter(result.tokens.tolist())
            for i, row in step:
                if row.tokens is not None:
                    done[i] += row.num_tokens
                if row.want is not None:
                    outputs[i].append(next(sampled))
        return outputs

    def _begin(
        self,
        lengths: Sequence[int],
        adapters: Sequence[int] | None = None,
        media: Sequence[SlotMedia | None] | None = None,
    ) -> None:
        """Slots for sequences of these lengths, and scattered, disjoint pages; page 0 is the sink."""
        through = adapters or [0] * len(lengths)
        shown = media or [None] * len(lengths)
        self._states = tuple(
            SlotState(i + 1, EVERYTHING, adapter=through[i], media=shown[i]) for i in range(len(lengths))
        )
        numbers, size = np.random.default_rng(7), self.space.page_size
        free = [list(numbers.permutation(np.arange(1, pages))) for pages in self.space.num_pages]
        of_groups = [mine for mine, pool in zip(free, self.space.cache.pools, strict=True) for _ in pool.windows]
        self._tables = tuple(
            (i, np.array([[mine.pop() for _ in range(-(-length // size))] for mine in of_groups], np.int32))
            for i, length in enumerate(lengths, 1)
        )

    def _launch(self, bucket: Bucket, rows: Sequence[Row]) -> StepResult:
        self._steps += 1
        batch = Batch(self._steps, bucket, Rows(rows), begin=self._states, tables=self._tables)
        self._states = self._tables = ()
        return self.runner.launch(batch).wait()


class _Programs(NamedTuple):
    model_class: type[Model]
    config: DecoderConfig
    space: ProgramSpace
    executables: Executables


@functools.lru_cache(maxsize=4)
def _programs(
    hf_config: str,
    dtype: str,
    devices: int,
    expert_parallel: bool,
    data: int,
    page_size: int,
    num_pages: int,
    backend: str,
    quantization: str | None,
    adapters: AdapterSpec | None,
    targets: tuple[str, ...] | None,
    encoders: tuple[Bucket, ...],
    promotion: str,
) -> _Programs:
    """What models that differ in their weights alone share. `promotion` is how JAX promotes types while they are traced.

    Programs of the same HLO are compiled once, in whichever test and process: sampling is the same in most families. Only the
    latest are kept loaded: each takes some 1,000 mappings of memory, of which Linux gives a process 65,530 (vm.max_map_count).
    """
    model_class = resolve(json.loads(hf_config))
    config = read_config(model_class, json.loads(hf_config))
    if not encoders:
        config = replace(config, tower=None)
    if devices == 1:
        layout = ONE_DEVICE
    elif data > 1:
        layout = share_tokens(jax.devices()[:devices], data=data)
    else:
        layout = share_layers(jax.devices()[:devices], expert_parallel=expert_parallel)
    schemes = Schemes.by_option(quantization)
    graph, structs = abstract_model(
        model_class,
        config,
        dtype=dtype,
        layout=layout,
        platform=PLATFORM,
        schemes=schemes,
        adapters=adapters,
        adapted=has_slots(model_class.WEIGHTS, targets),
    )
    pages = lay_out(graph.cache, max_model_len=config.max_position_embeddings)
    space = ProgramSpace(
        graph=graph,
        parameters=structs,
        cache=pages,
        vocab_size=config.vocab_size,
        grid=Grid([MIXED, DECODE]),
        max_num_seqs=KEPT,
        page_size=page_size,
        num_pages=tuple(num_pages * len(pool.windows) for pool in pages.pools),
        kv_dtype=jnp.dtype(kv_storage_dtype(dtype, platform=PLATFORM)),
        max_model_len=config.max_position_embeddings,
        max_logprobs=config.vocab_size,
        attention_backend=backend,
        platform=PLATFORM,
        device_layout=layout,
        adapters=adapters,
        media=None
        if graph.media is None
        else MediaSpace(
            traits=graph.media,
            buckets=encoders,
            num_pages=EMBEDDING_PAGES,
            page_size=EMBEDDING_PAGE,
            takes_given=graph.media.crossed is None,
        ),
    )
    needed = (
        "forward",
        "encode",
        "align",
        "write embeddings",
        "write settings",
        "write adapters",
        *space.sampling.names(SampleShape(KEPT, Variant.FULL)),
    )
    context = {
        **environment(device_fingerprint(jax.devices()[:1])["target.platform"]),
        **device_fingerprint(jax.devices()[:devices]),
        **source_digests(traced(model_class), (*PACKAGES, "tests")),
        "model.config": hf_config,
        "model.rest": repr(
            (dtype, devices, expert_parallel, data, page_size, num_pages, backend, quantization, promotion)
            + (() if adapters is None else (adapters, targets))
            + encoders
        ),
    }
    executables, _ = Executables.compile(
        [program for program in all_programs(space) if program.name.startswith(needed)],
        threads=2,
        cache=ProgramCache(context, store=Store.open(Path(os.environ["JAXENGINE_TEST_CACHE"]) / "models")),
    )
    return _Programs(model_class, config, space, executables)


def _cut(length: int, seq: int, media: SlotMedia | None) -> list[tuple[int, int]]:
    """Where rows of a prompt begin and end: of `seq` tokens, but that a span is in one row."""
    spans = [] if media is None else media.spans.tolist()
    cuts, start = [], 0
    while start < length:
        end = min(start + seq, length)
        end = next((after for before, after in spans if before < end < after), end)
        cuts.append((start, end))
        start = end
    return cuts


def _row(slot: int, tokens: Sequence[int], start: int, want: Want) -> Row:
    return Row(slot, tuple(tokens), len(tokens), start, want)


def _as_many_as_fit(rows: Sequence[tuple[int, Row]], *, one_each: bool = False) -> Sequence[tuple[int, Row]]:
    """The first rows; with `one_each` up to a second one of the same owner."""
    count, tokens = 0, 0
    owners: set[int] = set()
    while count < min(len(rows), MIXED.batch) and tokens + rows[count][1].num_tokens <= MIXED.tokens:
        owner, row = rows[count]
        if one_each and owner in owners:
            break
        owners.add(owner)
        tokens += row.num_tokens
        count += 1
    return rows[:count]
