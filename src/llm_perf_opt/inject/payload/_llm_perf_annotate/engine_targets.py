"""Which methods of serving engines are steps, and what is read of them: data, checked against released sources.

`tools/check_engines.py` looks every line up in the sources of releases; `engines.py` looks them up at import. Only
strings stand here, so that both can use it; nothing is imported, for every Python comes through here.
"""


class Target:
    """A method to be called as a stage."""

    def __init__(
        self, engine: str, module: str, method: str, stage: str, takes: tuple[str, ...] = (), optional: bool = False
    ) -> None:
        self.engine = engine
        self.module = module  # the one that defines the class
        self.method = method  # Class.method
        self.stage = stage  # its name; or, with a colon, the function of `engine_batches` that reads it off the call
        self.takes = takes  # parameters that the function reads, after self
        self.optional = optional  # releases without it lose nothing: they do it elsewhere, or not at all


class Fields:
    """Attributes that a function of `engine_batches` reads of a class."""

    def __init__(
        self, engine: str, module: str, owner: str, names: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> None:
        self.engine, self.module, self.owner, self.names = engine, module, owner, names
        self.optional = optional  # read where they are there; without them less is known


_BATCHING = "transformers.generation.continuous_batching"
_WORKER = "vllm.v1.worker.gpu_worker"
_RUNNER = "sglang.srt.model_executor.model_runner"
_SPECULATIVE = "sglang.srt.speculative"
_SPECULATORS = (  # of the model runner that vLLM takes by default; they are called while tokens are chosen
    *(("target_dependent_ar", "TargetDependentARSpeculator"), ("multi_module_mtp", "MultiModuleMTPSpeculator")),
    *(("standalone_ar", "StandaloneARSpeculator"), ("dflash", "DFlashSpeculator"), ("ngram", "NgramGPUSpeculator")),
)
_DRAFTS = (  # some replay graphs of their own, with no forward pass of a runner around them
    *(("eagle_worker", "EAGLEWorker.draft"), ("eagle_worker_v2", "EagleDraftWorker.draft")),
    ("eagle_worker_v2", "EagleDraftWorker._draft_extend_for_decode"),
    ("multi_layer_eagle_worker_v2", "MultiLayerEagleDraftWorker.draft"),
    ("multi_layer_eagle_worker_v2", "MultiLayerEagleDraftWorker._draft_extend_for_decode"),
    *(("frozen_kv_mtp_worker_v2", "FrozenKVMTPDraftWorker.draft"), ("uno_worker_v2", "UnoWorkerV2._run_draft_block")),
)

TARGETS = (
    Target("transformers", f"{_BATCHING}.continuous_api", "ContinuousBatchProcessor._generation_step", ":transformers"),
    Target(
        "transformers",
        f"{_BATCHING}.continuous_api",
        "ContinuousBatchProcessor.prepare_next_batch",
        ":schedule_transformers",
    ),
    Target("transformers", f"{_BATCHING}.continuous_api", "ContinuousBatchProcessor.update_batch", "update"),
    Target("transformers", f"{_BATCHING}.continuous_api", "ContinuousBatchProcessor.warmup", "warmup", optional=True),
    Target("vllm", _WORKER, "Worker.execute_model", ":vllm", ("scheduler_output",)),
    Target("vllm", _WORKER, "Worker.sample_tokens", "sample", optional=True),
    Target("vllm", _WORKER, "Worker.compile_or_warm_up_model", "warmup"),
    Target("vllm", _WORKER, "Worker.determine_available_memory", "warmup"),
    Target("vllm", _WORKER, "Worker.execute_dummy_batch", "dummy_step", optional=True),
    Target("vllm", "vllm.v1.worker.gpu_model_runner", "GPUModelRunner.capture_model", "graph_capture"),
    Target("vllm", "vllm.v1.worker.gpu_model_runner", "GPUModelRunner.propose_draft_token_ids", "draft"),
    Target("vllm", "vllm.v1.worker.gpu.model_runner", "GPUModelRunner.capture_model", "graph_capture", optional=True),
    *(
        Target(
            "vllm", f"vllm.v1.worker.gpu.spec_decode.{module}.speculator", f"{owner}.propose", "draft", optional=True
        )
        for module, owner in _SPECULATORS
    ),
    Target("vllm", "vllm.v1.core.sched.scheduler", "Scheduler.schedule", "schedule"),
    Target("vllm", "vllm.v1.core.sched.scheduler", "Scheduler.update_from_output", "update"),
    Target("sglang", _RUNNER, "ModelRunner.forward", ":sglang", ("forward_batch",)),
    Target("sglang", _RUNNER, "ModelRunner.sample", "sample"),
    Target("sglang", _RUNNER, "ModelRunner.init_device_graphs", "graph_capture", optional=True),
    Target("sglang", _RUNNER, "ModelRunner.init_cuda_graphs", "graph_capture", optional=True),
    Target("sglang", _RUNNER, "ModelRunner.kernel_warmup", "warmup", optional=True),
    *(Target("sglang", f"{_SPECULATIVE}.{module}", method, "draft", optional=True) for module, method in _DRAFTS),
    Target("sglang", "sglang.srt.managers.scheduler", "Scheduler.get_next_batch_to_run", ":schedule_sglang"),
    Target("sglang", "sglang.srt.managers.scheduler", "Scheduler.process_batch_result", "update"),
)

FIELDS = (
    Fields("transformers", f"{_BATCHING}.requests", "RequestState", ("initial_tokens", "position_offset")),
    Fields("transformers", f"{_BATCHING}.requests", "FutureRequestState", ("state", "has_new_token", "query_length")),
    Fields("transformers", f"{_BATCHING}.input_outputs", "ContinuousBatchingIOs", ("requests_in_batch",)),
    Fields("transformers", f"{_BATCHING}.input_outputs", "ContinuousBatchingAsyncIOs", ("io_pairs", "current_pair")),
    Fields("transformers", f"{_BATCHING}.input_outputs", "HostDeviceIOPair", ("host_io",)),
    Fields("transformers", f"{_BATCHING}.input_outputs", "ContinuousBatchingIOs", ("compute_stream",)),
    Fields("transformers", f"{_BATCHING}.input_outputs", "ContinuousBatchingAsyncIOs", ("compute_stream",)),
    Fields("transformers", f"{_BATCHING}.scheduler", "Scheduler", ("has_pending_requests",)),
    Fields(
        *("transformers", f"{_BATCHING}.continuous_api", "ContinuousBatchProcessor"),
        ("inputs_and_outputs", "scheduler", "input_queue"),
    ),
    Fields(
        *("vllm", "vllm.v1.core.sched.output", "SchedulerOutput"),
        (
            *("num_scheduled_tokens", "total_num_scheduled_tokens", "scheduled_new_reqs", "scheduled_cached_reqs"),
            "scheduled_spec_decode_tokens",
        ),
    ),
    Fields(
        *("vllm", "vllm.v1.core.sched.output", "CachedRequestData"),
        ("req_ids", "num_computed_tokens"),
        ("num_output_tokens",),
    ),
    Fields(
        *("vllm", "vllm.v1.core.sched.output", "NewRequestData"),
        ("req_id", "prompt_token_ids", "num_computed_tokens"),
        ("prefill_token_ids", "pooling_params"),
    ),
    Fields("vllm", "vllm.v1.worker.worker_base", "WorkerBase", (), ("vllm_config", "model_config")),
    Fields("vllm", "vllm.config.model", "ModelConfig", (), ("is_diffusion",)),
    Fields("vllm", "vllm.config.ec_transfer", "ECTransferConfig", (), ("is_ec_consumer",)),
    Fields("sglang", "sglang.srt.model_executor.forward_batch_info", "ForwardBatch", ("forward_mode", "batch_size")),
    Fields(
        *("sglang", "sglang.srt.model_executor.forward_batch_info", "ForwardBatch"),
        (),
        ("extend_num_tokens", "input_ids"),
    ),
    Fields("sglang", "sglang.srt.model_executor.forward_batch_info", "ForwardMode", ("EXTEND", "DECODE", "MIXED")),
    Fields(
        *("sglang", "sglang.srt.model_executor.forward_batch_info", "ForwardMode"),
        ("TARGET_VERIFY", "IDLE", "SPLIT_PREFILL"),
        ("DRAFT_EXTEND", "DRAFT_EXTEND_V2"),
    ),
    Fields("sglang", _RUNNER, "ModelRunner", ("is_draft_worker",)),
    Fields("sglang", "sglang.srt.managers.scheduler", "Scheduler", ("waiting_queue", "running_batch")),
    Fields("sglang", "sglang.srt.managers.schedule_batch", "ScheduleBatch", ("is_empty",)),
    Fields("vllm", "vllm.v1.worker.gpu_input_batch", "CachedRequestState", (), ("num_prompt_tokens",)),
)
