"""Names of devices, and of what lies in their memory."""

from __future__ import annotations

from collections.abc import Mapping

from jaxengine.options.names.name import Name, moot, refused

HOSTS = "One process drives the devices of one host; several hosts are not built yet."
_REPLICAS = "Start one server per replica, behind a balancer."
_OFFLOAD = "Weights and KV pages stay on the device; use a smaller dtype, quantization='int8' or more devices."
_XLA = "XLA owns the collectives."

DEVICE_NAMES: Mapping[str, Name] = dict(
    [
        # devices
        (
            "pipeline_parallel_size",
            Name("Layers are not split over devices; use tensor_parallel_size.", (1,), short="pp"),
        ),
        ("data_parallel_size", Name(_REPLICAS, (1,), short="dp")),
        ("data_parallel_rank", Name(_REPLICAS, (0,), short="dpn")),
        ("data_parallel_start_rank", Name(_REPLICAS, (0,), short="dpr")),
        ("data_parallel_size_local", Name(_REPLICAS, (1,), short="dpl")),
        ("data_parallel_address", Name(_REPLICAS, ("127.0.0.1",), short="dpa")),
        ("data_parallel_rpc_port", Name(_REPLICAS, ("",), short="dpp")),
        ("data_parallel_backend", Name(_REPLICAS, ("mp",), short="dpb")),
        ("data_parallel_hybrid_lb", Name(_REPLICAS, (False,), short="dph")),
        ("data_parallel_external_lb", Name(_REPLICAS, (False,), short="dpe")),
        ("api_server_count", Name(_REPLICAS, (1,), short="asc")),
        ("nnodes", Name(HOSTS, (1,), short="n")),
        ("node_rank", Name(HOSTS, (0,), short="r")),
        *refused(HOSTS, master_addr="127.0.0.1", master_port=29501, headless=False, distributed_timeout_seconds=""),
        *refused(HOSTS, distributed_executor_backend=("mp", "uni"), ray_workers_use_nsight=False, worker_use_ray=False),
        *refused(_REPLICAS, data_parallel_supervisor_port=9256, dp_supervisor_probe_interval_s=5),
        *refused(_REPLICAS, dp_supervisor_probe_timeout_s=5, dp_supervisor_probe_failure_threshold=3),
        *refused("Use CUDA_VISIBLE_DEVICES or TPU_VISIBLE_CHIPS.", device_ids=""),
        ("decode_context_parallel_size", Name("A sequence is not split over devices.", (1,), short="dcp")),
        ("prefill_context_parallel_size", Name("A sequence is not split over devices.", (1,), short="pcp")),
        *moot(
            "A sequence is not split over devices.",
            dcp_kv_cache_interleave_size=1,
            cp_kv_cache_interleave_size=1,
            dcp_comm_backend="",
        ),
        *refused("Experts stay where they are.", enable_eplb=False, eplb_config={}, enable_elastic_ep=False),
        *moot("Experts stay where they are.", enable_ep_weight_filter=False, expert_placement_strategy="linear"),
        *moot(_XLA, disable_custom_all_reduce=False, all2all_backend="", disable_nccl_for_dp_synchronization=False),
        *moot("Steps are launched ahead of their results: see async_scheduling.", enable_dbo=False, ubatch_size=0),
        *moot("Steps are launched ahead of their results: see async_scheduling.", dbo_decode_token_threshold=32),
        *moot("Steps are launched ahead of their results: see async_scheduling.", dbo_prefill_token_threshold=512),
        *moot("Processes are bound by whoever starts them.", numa_bind=False, numa_bind_nodes=[], numa_bind_cpus=[]),
        *refused(
            "There is one kind of worker and of scheduler.",
            worker_cls="auto",
            worker_extension_cls="",
            scheduler_cls="",
        ),
        # memory
        *moot("Preempted requests are recomputed, never swapped.", swap_space=4, preemption_mode="recompute"),
        *refused(
            _OFFLOAD,
            cpu_offload_gb=0,
            cpu_offload_params=[],
            offload_backend="auto",
            offload_group_size=0,
            offload_num_in_group=1,
            offload_prefetch_step=1,
            offload_params=[],
            kv_offloading_size="",
            kv_offloading_backend="native",
        ),
        *refused("Close the LLM to free the device.", enable_sleep_mode=False),
        *refused(
            "The KV cache is not shared between engines.",
            kv_transfer_config={},
            kv_events_config={},
            ec_transfer_config={},
        ),
        *refused("Weights are loaded once.", weight_transfer_config={}),
        *moot("Prefixes are told apart by a strong hash.", prefix_caching_hash_algo="sha256"),
        *moot(
            "There is one page ledger.",
            use_v2_block_manager=True,
            num_lookahead_slots=0,
            disable_hybrid_kv_cache_manager=False,
        ),
        *moot("A request begins when its first step has room.", scheduler_reserve_full_isl=True, watermark=0),
    ]
)
