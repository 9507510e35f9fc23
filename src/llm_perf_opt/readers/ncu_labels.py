"""What ncu's details page calls sections and metrics, and what the rest of ncu calls them."""

from __future__ import annotations

import re

STATIC_SHARED = "launch__shared_mem_per_block_static"
DYNAMIC_SHARED = "launch__shared_mem_per_block_dynamic"
_ASKED_ONE_BY_ONE = "Command line profiler metrics"  # stands where a section would, and is none
_LABEL_AND_NAME = re.compile(r".* \(([a-z]\w*_[\w.:]*)\)")

_SECTION_IDENTIFIERS = {
    "C2CLink": "C2CLink",
    "Compute Workload Analysis": "ComputeWorkloadAnalysis",
    "GPU Speed Of Light": "SpeedOfLight",
    "GPU Speed Of Light Hierarchical Roofline Chart (Double Precision)": (
        "SpeedOfLight_HierarchicalDoubleRooflineChart"
    ),
    "GPU Speed Of Light Hierarchical Roofline Chart (Half Precision)": ("SpeedOfLight_HierarchicalHalfRooflineChart"),
    "GPU Speed Of Light Hierarchical Roofline Chart (Single Precision)": (
        "SpeedOfLight_HierarchicalSingleRooflineChart"
    ),
    "GPU Speed Of Light Hierarchical Roofline Chart (Tensor Core)": ("SpeedOfLight_HierarchicalTensorRooflineChart"),
    "GPU Speed Of Light Roofline Chart": "SpeedOfLight_RooflineChart",
    "GPU Speed Of Light Throughput": "SpeedOfLight",
    "GPU and Memory Workload Distribution": "WorkloadDistribution",
    "Instruction Statistics": "InstructionStats",
    "Launch Statistics": "LaunchStats",
    "Memory Workload Analysis": "MemoryWorkloadAnalysis",
    "Memory Workload Analysis Chart": "MemoryWorkloadAnalysis_Chart",
    "Memory Workload Analysis Tables": "MemoryWorkloadAnalysis_Tables",
    "NUMA Affinity": "NumaAffinity",
    "NVLink": "Nvlink",
    "NVLink Tables": "Nvlink_Tables",
    "NVLink Topology": "Nvlink_Topology",
    "PM Sampling": "PmSampling",
    "PM Sampling: Warp States": "PmSampling_WarpStates",
    "Scheduler Statistics": "SchedulerStats",
    "Source Counters": "SourceCounters",
    "Warp State Statistics": "WarpStateStats",
}

# Sections that describe the launch or the machine, whatever their labels: nothing in them is a counter.
_DESCRIPTIVE_SECTIONS = frozenset(("LaunchStats", "NumaAffinity", "Nvlink_Topology", "PmSampling"))

# Learnt from ncu itself (`--print-metric-name label-name`) on reports of 2022 to 2025. A label that means
# different metrics on different chips is not here: its name stays as printed.
_LABELS: dict[str, dict[str, str]] = {
    "SpeedOfLight": {
        "Compute (SM) Throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
        "DRAM Throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "Duration": "gpu__time_duration.sum",
        "Elapsed Cycles": "gpc__cycles_elapsed.max",
        "L1/TEX Cache Throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
        "L2 Cache Throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory Throughput": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "SM Active Cycles": "sm__cycles_active.avg",
        "SM Frequency": "gpc__cycles_elapsed.avg.per_second",
        "Waves Per SM": "launch__waves_per_multiprocessor",
    },
    "SpeedOfLight_RooflineChart": {
        "Predicated-On DFMA Thread Instructions Executed Per Cycle": (
            "smsp__sass_thread_inst_executed_op_dfma_pred_on.sum.per_cycle_elapsed"
        ),
        "Predicated-On FFMA Thread Instructions Executed Per Cycle": (
            "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed"
        ),
        "Theoretical Predicated-On DFMA Thread Instructions Executed": (
            "sm__sass_thread_inst_executed_op_dfma_pred_on.sum.peak_sustained"
        ),
        "Theoretical Predicated-On FFMA Thread Instructions Executed": (
            "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained"
        ),
    },
    "ComputeWorkloadAnalysis": {
        "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
        "Executed Ipc Elapsed": "sm__inst_executed.avg.per_cycle_elapsed",
        "Issue Slots Busy": "sm__inst_issued.avg.pct_of_peak_sustained_active",
        "Issued Ipc Active": "sm__inst_issued.avg.per_cycle_active",
        "SM Busy": "sm__instruction_throughput.avg.pct_of_peak_sustained_active",
    },
    "MemoryWorkloadAnalysis": {
        "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
        "L2 Compression Ratio": "lts__average_gcomp_output_sector_compression_achieved_rate.ratio",
        "L2 Compression Success Rate": "lts__average_gcomp_input_sector_success_rate.pct",
        "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
        "Max Bandwidth": "gpu__compute_memory_request_throughput.avg.pct_of_peak_sustained_elapsed",
        "Mem Busy": "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
        "Mem Pipes Busy": "sm__memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory Throughput": "dram__bytes.sum.per_second",
    },
    "Occupancy": {
        "Achieved Active Warps Per SM": "sm__warps_active.avg.per_cycle_active",
        "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
        "Block Limit Barriers": "launch__occupancy_limit_barriers",
        "Block Limit Registers": "launch__occupancy_limit_registers",
        "Block Limit SM": "launch__occupancy_limit_blocks",
        "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
        "Block Limit Warps": "launch__occupancy_limit_warps",
        "Cluster Occupancy": "launch__occupancy_cluster_pct",
        "Max Active Clusters": "launch__cluster_max_active",
        "Max Cluster Size": "launch__cluster_max_potential_size",
        "Overall GPU Occupancy": "launch__occupancy_cluster_gpu_pct",
        "Theoretical Active Warps per SM": "sm__maximum_warps_avg_per_active_cycle",
        "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
    },
    "LaunchStats": {"Dynamic Shared Memory Per Block": DYNAMIC_SHARED, "Static Shared Memory Per Block": STATIC_SHARED},
    "WorkloadDistribution": {
        "Average DRAM Active Cycles": "dram__cycles_active.avg",
        "Average L1 Active Cycles": "l1tex__cycles_active.avg",
        "Average L2 Active Cycles": "lts__cycles_active.avg",
        "Average SM Active Cycles": "sm__cycles_active.avg",
        "Average SMSP Active Cycles": "smsp__cycles_active.avg",
        "Total DRAM Elapsed Cycles": "dram__cycles_elapsed.sum",
        "Total L1 Elapsed Cycles": "l1tex__cycles_elapsed.sum",
        "Total L2 Elapsed Cycles": "lts__cycles_elapsed.sum",
        "Total SM Elapsed Cycles": "sm__cycles_elapsed.sum",
        "Total SMSP Elapsed Cycles": "smsp__cycles_elapsed.sum",
    },
    "InstructionStats": {
        "Avg. Executed Instructions Per Scheduler": "smsp__inst_executed.avg",
        "Avg. Issued Instructions Per Scheduler": "smsp__inst_issued.avg",
        "Executed Instructions": "smsp__inst_executed.sum",
        "Issued Instructions": "smsp__inst_issued.sum",
    },
    "SchedulerStats": {
        "Active Warps Per Scheduler": "smsp__warps_active.avg.per_cycle_active",
        "Eligible Warps Per Scheduler": "smsp__warps_eligible.avg.per_cycle_active",
        "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
        "No Eligible": "smsp__issue_inst0.avg.pct_of_peak_sustained_active",
        "One or More Eligible": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    },
    "WarpStateStats": {
        "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
        "Avg. Not Predicated Off Threads Per Warp": ("smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"),
        "Warp Cycles Per Executed Instruction": "smsp__average_warps_active_per_inst_executed.ratio",
        "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
    },
    "SourceCounters": {
        "Avg. Divergent Branches": "smsp__sass_branch_targets_threads_divergent.avg",
        "Branch Efficiency": "smsp__sass_average_branch_targets_threads_uniform.pct",
        "Branch Instructions": "smsp__inst_executed_op_branch.sum",
        "Branch Instructions Ratio": "derived__smsp__inst_executed_op_branch_pct",
    },
}


def section_identifier(title: str) -> str:
    """The identifier of a section. Rows of rules print it, rows of metrics print the title."""
    return "" if title == _ASKED_ONE_BY_ONE else _SECTION_IDENTIFIERS.get(title, title)


def metric_name(section: str, body: str, label: str) -> str | None:
    """The metric behind a label; None where the section holds no counters."""
    identifier = _SECTION_IDENTIFIERS.get(section, section)
    if "__" in label and " " not in label:
        return label
    both = _LABEL_AND_NAME.fullmatch(label)
    if both:
        return both.group(1)
    if not body and label in _LABELS.get(identifier, {}):
        return _LABELS[identifier][label]
    if identifier in _DESCRIPTIVE_SECTIONS:
        return None
    return "/".join(part for part in (section, body, label) if part)
