"""Which formulas are compared with what the simulated ranks do, where, and which ones cannot be, and why.

A test keeps both lists complete: every formula is in exactly one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Test file (tests/simulate/test_<name>.py), module of the formulas, functions.
_COMPARED = (
    ("collectives", "collective_domains", "hierarchical_all_gather_s remote_share spanning_all_to_all_s"),
    (
        "collectives",
        "collective_times",
        ("all_reduce_bus_bytes_per_s gather_bus_bytes_per_s ring_all_gather_steps ring_all_reduce_steps tree_all_reduce_steps "),
    ),
    (
        "collectives",
        "collectives",
        (
            "all_gather_sent_bytes all_reduce_sent_bytes all_to_all_sent_bytes broadcast_sent_bytes "
            "reduce_scatter_sent_bytes switch_all_gather_sent_bytes switch_all_reduce_sent_bytes "
        ),
    ),
    ("experts", "activations_moe", "expert_input expert_rows"),
    (
        "experts",
        "experts",
        ("dispatch_sent_bytes exchange_sent_bytes exchange_to_compute expert_capacity expert_flops experts_per_rank "),
    ),
    ("experts", "flops", "matmul_flops"),
    ("experts", "parameters", "expert_parameters mlp_parameters"),
    ("experts", "routing", "node_dispatch_sent_bytes nodes_reached"),
    ("experts", "serving", "experts_touched tokens_per_expert"),
    ("pipeline", "activations", "token_tensors"),
    ("pipeline", "flops", "recompute_flops training_flops"),
    ("pipeline", "in_flight", "gpipe_in_flight interleaved_in_flight_chunks one_f_one_b_in_flight"),
    ("pipeline", "pipeline", "interleaved_bubble_s one_f_one_b_bubble_s"),
    ("pipeline", "pipeline_steps", "bubble_share interleaved_group_in_flight_chunks rematerialised_bytes uneven_pipeline_s"),
    ("ring", "flops", "attention_flops window_context"),
    ("ring", "ring_attention", "ring_block_min ring_block_min_backward ring_held_bytes ring_sent_bytes round_bytes round_flops"),
    ("ring_clock", "ring_attention", "ring_exposed_s ring_forward_s"),
    (
        "ring_clock",
        "ring_placement",
        (
            "contiguous_busy_share contiguous_ring_pairs contiguous_round_pairs striped_ring_pairs "
            "striped_round_pairs zigzag_ring_pairs zigzag_round_pairs "
        ),
    ),
    ("show_experts", "routing", "busiest_over_mean"),
    ("tensor", "activations", "attention_output feed_forward korthikanti_layer log_sum_exp queries_keys_values"),
    ("tensor", "parameters", "attention_parameters"),
    ("tensor", "serving", "grouped_kv_bytes"),
    (
        "tensor",
        "tensor_parallel",
        (
            "all_reduces column_output_sent_bytes layer_sent_bytes row_output_sent_bytes "
            "sequence_parallel_gathers sequence_parallel_scatters shard_bytes "
        ),
    ),
    ("topology", "topology", "coordinate domains_spanned first_member ranks_in_domain"),
    ("ulysses", "activations_context", "gathered_keys_values"),
    ("ulysses", "context", "gathered_kv_bytes gathered_kv_sent_bytes hybrid_sent_bytes outer_ring_ranks"),
    ("ulysses", "ulysses", "kv_head_copies largest_degree ulysses_sent_bytes"),
    ("zero", "optimizer_state", "sharded_bytes zero_state"),
)

# Reason, formulas.
_WITHOUT = (
    ("attention here keeps no scores, as the fused kernels that are priced", "activations.unfused_scores"),
    (
        "buffers of one framework's ring (Transformer Engine), which a textbook ring does not have; ring_held_bytes is compared",
        "activations_context.ring_forward_held activations_context.ring_backward_held",
    ),
    (
        "a list of tensors that one framework's router and dispatcher keep",
        "activations_moe.combine_held activations_moe.router_kept activations_moe.row_map_kept",
    ),
    ("nothing in the room is written to storage", "optimizer_state.checkpoint_bytes"),
    ("every weight in the room is trained; none is frozen", "parameters.lora_parameters flops.adapter_training_flops"),
    (
        "no state mixers in the room",
        (
            "activations_recurrent.gated_delta_kept activations_recurrent.mamba2_kept flops.state_flops "
            "parameters_state.gated_delta_parameters parameters_state.mamba1_parameters "
            "parameters_state.mamba2_parameters "
        ),
    ),
    (
        "workspaces, buckets and caches of one framework; NumPy has none",
        (
            "buffers.allocator_reserve buffers.bucket_bytes buffers.matmul_workspaces buffers.shard_copy_bytes "
            "buffers.unsharded_backward buffers.unsharded_forward buffers.weight_gradient_cache "
        ),
    ),
    (
        "a lower bound over several rings at once; one ring through the nodes sends more, hierarchical_all_gather_s is compared",
        "collective_domains.spanning_all_gather_s",
    ),
    (
        "buffers of a communication library",
        (
            "communication_buffers.deepep_buffers communication_buffers.ring_communicator "
            "communication_buffers.switch_communicator "
        ),
    ),
    ("latency and bandwidth are measured; the room counts bytes and steps, which it multiplies", "collective_times.transfer_s"),
    ("counts groups; nothing is exchanged or computed", "experts.expert_copies"),
    (
        "arithmetic of a design that the room does not run (experts on a latent)",
        (
            "latent_experts.latent_dispatched_elements latent_experts.latent_exchange_to_compute "
            "latent_experts.latent_expert_weights latent_experts.latent_routed_width "
        ),
    ),
    (
        "no vocabulary in the room",
        ("logits.logits_held logits.output_layer_gradient parameters.embedding_parameters parameters.padded_vocabulary "),
    ),
    (
        "bytes of a storage format; the room keeps float64 and Adam",
        ("optimizer_state.blockwise_moments optimizer_state.factored_moments optimizer_state.quantised_copies "),
    ),
    (
        "memory traffic inside one rank or host is not counted",
        "optimizer_step.step_traffic_bytes optimizer_step.host_step_s roofline.matmul_intensity",
    ),
    (
        "the room's optimizer is Adam; tests/formulas count the products of Muon's iterations",
        "optimizer_step.newton_schulz_flops",
    ),
    ("another program's estimate, kept to compare with", "optimizer_state.zero_infinity_estimate"),
    (
        "no latent attention in the room",
        "parameters.latent_attention_parameters serving.latent_kv_bytes flops.compressed_context",
    ),
    (
        "no recurrent mixer in the room; tests/formulas list its tensors",
        "serving_state.delta_state_bytes serving_state.mamba1_state_bytes serving_state.mamba2_state_bytes",
    ),
    ("the logits of the router are drawn, not computed from tokens", "parameters.router_parameters"),
    (
        "a schedule that splits the backward pass or runs both ways: timed exactly by parlay.schedules, whose tests compare",
        (
            "pipeline.dualpipe_bubble_s in_flight.dualpipe_in_flight pipeline.zb_h1_bubble_s "
            "pipeline.zb_h2_bubble_s in_flight.zb_h2_in_flight pipeline.zb_v_bubble_s in_flight.zb_v_in_flight "
        ),
    ),
    (
        "asynchronous pipelines do not give the numbers of one rank, so there is nothing to be equal to",
        "pipeline_steps.double_buffered_weight_versions pipeline_steps.pipedream_weight_versions",
    ),
    (
        "a ratio or bound of rates, which the room has none of",
        (
            "roofline.attainable_flops_per_s roofline.compute_bound_rows roofline.machine_balance "
            "roofline.roofline_s serving.decode_floor_s serving.prefill_floor_s "
        ),
    ),
    (
        "needs measured slow-downs, which the room has none of; a clock in small steps is compared in tests/formulas",
        "contention.overlapped_s",
    ),
    ("a training loss; the room's routers do not learn", "routing.load_balancing_loss"),
    ("no serving engine in the room", "serving.cache_room_tokens serving.windowed_tokens"),
)


def compared() -> Mapping[str, str]:
    """Return, for every formula that a simulation is compared with, the file of tests/simulate that does so."""
    return MappingProxyType(
        {f"{module}.{name}": f"test_{file}.py" for file, module, names in _COMPARED for name in names.split()}
    )


def without_counterpart() -> Mapping[str, str]:
    """Return, for every formula that no simulation is compared with, the reason."""
    return MappingProxyType({name: reason for reason, names in _WITHOUT for name in names.split()})
