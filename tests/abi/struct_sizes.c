/* Sizes and offsets of the public structs on 64-bit platforms. A published struct only
 * ever grows at its end: a line here may be added, none may change.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <lowkey/lowkey.h>

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#define OFFSET(type, field, bytes) \
    _Static_assert(offsetof(type, field) == (bytes), #type "." #field)

SIZE(lk_tensor, 56);
OFFSET(lk_tensor, size, 0);
OFFSET(lk_tensor, dtype, 4);
OFFSET(lk_tensor, memory, 8);
OFFSET(lk_tensor, flags, 12);
OFFSET(lk_tensor, data, 16);
OFFSET(lk_tensor, buffer, 24);
OFFSET(lk_tensor, offset_bytes, 32);
OFFSET(lk_tensor, token_stride, 40);
OFFSET(lk_tensor, head_stride, 48);

SIZE(lk_queue, 48);
OFFSET(lk_queue, size, 0);
OFFSET(lk_queue, kind, 4);
OFFSET(lk_queue, handle, 8);
OFFSET(lk_queue, wait_semaphore, 16);
OFFSET(lk_queue, wait_value, 24);
OFFSET(lk_queue, signal_semaphore, 32);
OFFSET(lk_queue, signal_value, 40);

SIZE(lk_layer, 56);
OFFSET(lk_layer, size, 0);
OFFSET(lk_layer, n_query_heads, 4);
OFFSET(lk_layer, n_kv_heads, 8);
OFFSET(lk_layer, head_dim, 12);
OFFSET(lk_layer, window_tokens, 16);
OFFSET(lk_layer, window_sink_tokens, 20);
OFFSET(lk_layer, scale, 24);
OFFSET(lk_layer, soft_cap, 28);
OFFSET(lk_layer, sink_logits, 32);
OFFSET(lk_layer, kv_layer, 40);
OFFSET(lk_layer, reserved, 44);
OFFSET(lk_layer, value_dim, 48);
OFFSET(lk_layer, flags, 52);

SIZE(lk_geometry, 16);
OFFSET(lk_geometry, size, 0);
OFFSET(lk_geometry, n_layers, 4);
OFFSET(lk_geometry, layers, 8);

SIZE(lk_key_rule, 48);
OFFSET(lk_key_rule, size, 0);
OFFSET(lk_key_rule, bits, 4);
OFFSET(lk_key_rule, axis, 8);
OFFSET(lk_key_rule, group, 12);
OFFSET(lk_key_rule, boost_channels, 16);
OFFSET(lk_key_rule, boost_bits, 20);
OFFSET(lk_key_rule, boost_ranking, 24);
OFFSET(lk_key_rule, channel_bits, 32);
OFFSET(lk_key_rule, one_bit, 40);
OFFSET(lk_key_rule, clip, 44);

SIZE(lk_chunk_rule, 36);
OFFSET(lk_chunk_rule, size, 0);
OFFSET(lk_chunk_rule, chunk_tokens, 4);
OFFSET(lk_chunk_rule, low_bits, 8);
OFFSET(lk_chunk_rule, middle_bits, 12);
OFFSET(lk_chunk_rule, high_bits, 16);
OFFSET(lk_chunk_rule, alpha, 20);
OFFSET(lk_chunk_rule, beta, 24);
OFFSET(lk_chunk_rule, reorder, 28);
OFFSET(lk_chunk_rule, hold, 32);

SIZE(lk_chunk_mix, 16);
OFFSET(lk_chunk_mix, size, 0);
OFFSET(lk_chunk_mix, n_low, 4);
OFFSET(lk_chunk_mix, n_middle, 8);
OFFSET(lk_chunk_mix, n_high, 12);

SIZE(lk_value_rule, 20);
OFFSET(lk_value_rule, size, 0);
OFFSET(lk_value_rule, bits, 4);
OFFSET(lk_value_rule, group, 8);
OFFSET(lk_value_rule, one_bit, 12);
OFFSET(lk_value_rule, clip, 16);

SIZE(lk_chanmix_layout, 1040);
OFFSET(lk_chanmix_layout, size, 0);
OFFSET(lk_chanmix_layout, head_dim, 4);
OFFSET(lk_chanmix_layout, token_bytes, 8);
OFFSET(lk_chanmix_layout, reserved, 12);
OFFSET(lk_chanmix_layout, channel, 16);
OFFSET(lk_chanmix_layout, bits, 272);
OFFSET(lk_chanmix_layout, byte, 528);
OFFSET(lk_chanmix_layout, shift, 784);

SIZE(lk_plan_size, 72);
OFFSET(lk_plan_size, size, 0);
OFFSET(lk_plan_size, n_blocks, 4);
OFFSET(lk_plan_size, bits_per_value, 8);
OFFSET(lk_plan_size, bytes_per_token, 16);
OFFSET(lk_plan_size, fp16_bytes, 24);
OFFSET(lk_plan_size, payload_bytes, 32);
OFFSET(lk_plan_size, metadata_bytes, 40);
OFFSET(lk_plan_size, recent_bytes, 48);
OFFSET(lk_plan_size, table_bytes, 56);
OFFSET(lk_plan_size, cache_bytes, 64);

SIZE(lk_probe, 20);
OFFSET(lk_probe, size, 0);
OFFSET(lk_probe, prefix_tokens, 4);
OFFSET(lk_probe, period_tokens, 8);
OFFSET(lk_probe, sink_tokens, 12);
OFFSET(lk_probe, local_tokens, 16);

SIZE(lk_chanmix, 80);
OFFSET(lk_chanmix, size, 0);
OFFSET(lk_chanmix, retrieval, 4);
OFFSET(lk_chanmix, scope, 8);
OFFSET(lk_chanmix, outliers, 12);
OFFSET(lk_chanmix, centers, 16);
OFFSET(lk_chanmix, metadata, 20);
OFFSET(lk_chanmix, group, 24);
OFFSET(lk_chanmix, sink_tokens, 28);
OFFSET(lk_chanmix, recent_tokens, 32);
OFFSET(lk_chanmix, retrieval_share, 40);
OFFSET(lk_chanmix, budget_bytes, 48);
OFFSET(lk_chanmix, budget_tokens, 56);
OFFSET(lk_chanmix, budget_sequences, 64);
OFFSET(lk_chanmix, budget_step_tokens, 68);
OFFSET(lk_chanmix, one_bit, 72);
OFFSET(lk_chanmix, reserved, 76);

SIZE(lk_rope, 32);
OFFSET(lk_rope, size, 0);
OFFSET(lk_rope, pairing, 4);
OFFSET(lk_rope, channels, 8);
OFFSET(lk_rope, reserved, 12);
OFFSET(lk_rope, base, 16);
OFFSET(lk_rope, frequencies, 24);

SIZE(lk_scale_search, 24);
OFFSET(lk_scale_search, size, 0);
OFFSET(lk_scale_search, pairing, 4);
OFFSET(lk_scale_search, channels, 8);
OFFSET(lk_scale_search, key_bits, 12);
OFFSET(lk_scale_search, value_bits, 16);
OFFSET(lk_scale_search, query_step, 20);

SIZE(lk_pmkvq, 88);
OFFSET(lk_pmkvq, size, 0);
OFFSET(lk_pmkvq, n_widths, 4);
OFFSET(lk_pmkvq, widths, 8);
OFFSET(lk_pmkvq, sensitivity, 24);
OFFSET(lk_pmkvq, scope, 28);
OFFSET(lk_pmkvq, separate_values, 32);
OFFSET(lk_pmkvq, key_axis, 36);
OFFSET(lk_pmkvq, group, 40);
OFFSET(lk_pmkvq, key_scales, 44);
OFFSET(lk_pmkvq, sink_tokens, 48);
OFFSET(lk_pmkvq, recent_tokens, 52);
OFFSET(lk_pmkvq, budget_bytes, 56);
OFFSET(lk_pmkvq, budget_tokens, 64);
OFFSET(lk_pmkvq, budget_sequences, 72);
OFFSET(lk_pmkvq, budget_step_tokens, 76);
OFFSET(lk_pmkvq, layer_budgets, 80);
OFFSET(lk_pmkvq, reserved, 84);

SIZE(lk_cost_options, 32);
OFFSET(lk_cost_options, size, 0);
OFFSET(lk_cost_options, n_kinds, 4);
OFFSET(lk_cost_options, n_documents, 8);
OFFSET(lk_cost_options, clips, 12);
OFFSET(lk_cost_options, sink_tokens, 16);
OFFSET(lk_cost_options, recent_tokens, 20);
OFFSET(lk_cost_options, fingerprint, 24);

SIZE(lk_cost_trial, 24);
OFFSET(lk_cost_trial, size, 0);
OFFSET(lk_cost_trial, document, 4);
OFFSET(lk_cost_trial, layer, 8);
OFFSET(lk_cost_trial, kv_head, 12);
OFFSET(lk_cost_trial, is_value, 16);
OFFSET(lk_cost_trial, clip, 20);

SIZE(lk_auto, 48);
OFFSET(lk_auto, size, 0);
OFFSET(lk_auto, centers, 4);
OFFSET(lk_auto, sink_tokens, 8);
OFFSET(lk_auto, recent_tokens, 12);
OFFSET(lk_auto, bits_per_value, 16);
OFFSET(lk_auto, budget_bytes, 24);
OFFSET(lk_auto, budget_tokens, 32);
OFFSET(lk_auto, budget_sequences, 40);
OFFSET(lk_auto, budget_step_tokens, 44);

SIZE(lk_cache_desc, 88);
OFFSET(lk_cache_desc, size, 0);
OFFSET(lk_cache_desc, max_sequences, 4);
OFFSET(lk_cache_desc, max_step_tokens, 8);
OFFSET(lk_cache_desc, flags, 12);
OFFSET(lk_cache_desc, budget_bytes, 16);
OFFSET(lk_cache_desc, slab_bytes, 24);
OFFSET(lk_cache_desc, max_budget_bytes, 32);
OFFSET(lk_cache_desc, sequence_limit_bytes, 40);
OFFSET(lk_cache_desc, pressure, 48);
OFFSET(lk_cache_desc, pressure_user, 56);
OFFSET(lk_cache_desc, state_bytes, 64);
OFFSET(lk_cache_desc, n_states, 72);
OFFSET(lk_cache_desc, state_versions, 76);
OFFSET(lk_cache_desc, state_interval_tokens, 80);
OFFSET(lk_cache_desc, reserved, 84);

SIZE(lk_pressure, 48);
OFFSET(lk_pressure, size, 0);
OFFSET(lk_pressure, capacity, 4);
OFFSET(lk_pressure, shortfall_bytes, 8);
OFFSET(lk_pressure, reserved_bytes, 16);
OFFSET(lk_pressure, budget_bytes, 24);
OFFSET(lk_pressure, ids, 32);
OFFSET(lk_pressure, n_ids, 40);
OFFSET(lk_pressure, reserved, 44);

SIZE(lk_cache_stats, 208);
OFFSET(lk_cache_stats, size, 0);
OFFSET(lk_cache_stats, n_sequences, 4);
OFFSET(lk_cache_stats, n_tokens, 8);
OFFSET(lk_cache_stats, budget_bytes, 16);
OFFSET(lk_cache_stats, reserved_bytes, 24);
OFFSET(lk_cache_stats, payload_bytes, 32);
OFFSET(lk_cache_stats, metadata_bytes, 40);
OFFSET(lk_cache_stats, recent_bytes, 48);
OFFSET(lk_cache_stats, table_bytes, 56);
OFFSET(lk_cache_stats, workspace_bytes, 64);
OFFSET(lk_cache_stats, free_bytes, 72);
OFFSET(lk_cache_stats, pages_packed, 80);
OFFSET(lk_cache_stats, pages_dequantized, 88);
OFFSET(lk_cache_stats, values_saturated, 96);
OFFSET(lk_cache_stats, device_bytes, 104);
OFFSET(lk_cache_stats, shared_bytes, 112);
OFFSET(lk_cache_stats, pages_copied, 120);
OFFSET(lk_cache_stats, pages_shrunk, 128);
OFFSET(lk_cache_stats, sequences_evicted, 136);
OFFSET(lk_cache_stats, fragmented_bytes, 144);
OFFSET(lk_cache_stats, plane_bytes, 152);
OFFSET(lk_cache_stats, state_bytes, 200);

SIZE(lk_device_info, 288);
OFFSET(lk_device_info, size, 0);
OFFSET(lk_device_info, backend, 4);
OFFSET(lk_device_info, index, 8);
OFFSET(lk_device_info, n_threads, 12);
OFFSET(lk_device_info, memory_bytes, 16);
OFFSET(lk_device_info, free_bytes, 24);
OFFSET(lk_device_info, name, 32);
OFFSET(lk_device_info, features, 160);

SIZE(lk_context_desc, 88);
OFFSET(lk_context_desc, size, 0);
OFFSET(lk_context_desc, backend, 4);
OFFSET(lk_context_desc, device_index, 8);
OFFSET(lk_context_desc, n_threads, 12);
OFFSET(lk_context_desc, cpu_mask, 16);
OFFSET(lk_context_desc, log_level, 20);
OFFSET(lk_context_desc, log, 24);
OFFSET(lk_context_desc, log_user, 32);
OFFSET(lk_context_desc, alloc, 40);
OFFSET(lk_context_desc, free, 48);
OFFSET(lk_context_desc, alloc_user, 56);
OFFSET(lk_context_desc, vulkan, 64);
OFFSET(lk_context_desc, parallel_for, 72);
OFFSET(lk_context_desc, parallel_for_user, 80);

SIZE(lk_vulkan_desc, 120);
OFFSET(lk_vulkan_desc, size, 0);
OFFSET(lk_vulkan_desc, mask, 4);
OFFSET(lk_vulkan_desc, validation, 8);
OFFSET(lk_vulkan_desc, api_version, 12);
OFFSET(lk_vulkan_desc, get_instance_proc_addr, 16);
OFFSET(lk_vulkan_desc, instance, 24);
OFFSET(lk_vulkan_desc, physical_device, 32);
OFFSET(lk_vulkan_desc, device, 40);
OFFSET(lk_vulkan_desc, queue, 48);
OFFSET(lk_vulkan_desc, queue_family, 56);
OFFSET(lk_vulkan_desc, n_extensions, 60);
OFFSET(lk_vulkan_desc, extensions, 64);
OFFSET(lk_vulkan_desc, features, 72);
OFFSET(lk_vulkan_desc, lock_queue, 80);
OFFSET(lk_vulkan_desc, unlock_queue, 88);
OFFSET(lk_vulkan_desc, lock_user, 96);
OFFSET(lk_vulkan_desc, pipeline_cache, 104);
OFFSET(lk_vulkan_desc, pipeline_cache_bytes, 112);

SIZE(lk_capability, 44);
OFFSET(lk_capability, size, 0);
OFFSET(lk_capability, head_dim, 4);
OFFSET(lk_capability, group_size, 8);
OFFSET(lk_capability, key_bits, 12);
OFFSET(lk_capability, value_bits, 16);
OFFSET(lk_capability, page_tokens, 20);
OFFSET(lk_capability, memory, 24);
OFFSET(lk_capability, dtype, 28);
OFFSET(lk_capability, queue, 32);
OFFSET(lk_capability, value_dim, 36);
OFFSET(lk_capability, is_latent, 40);

SIZE(lk_snapshot_desc, 32);
OFFSET(lk_snapshot_desc, size, 0);
OFFSET(lk_snapshot_desc, fingerprint_bytes, 4);
OFFSET(lk_snapshot_desc, fingerprint, 8);
OFFSET(lk_snapshot_desc, progress, 16);
OFFSET(lk_snapshot_desc, progress_user, 24);

SIZE(lk_snapshot_info, 344);
OFFSET(lk_snapshot_info, size, 0);
OFFSET(lk_snapshot_info, version, 4);
OFFSET(lk_snapshot_info, n_sequences, 8);
OFFSET(lk_snapshot_info, n_formats, 12);
OFFSET(lk_snapshot_info, total_bytes, 16);
OFFSET(lk_snapshot_info, n_tokens, 24);
OFFSET(lk_snapshot_info, n_blocks, 32);
OFFSET(lk_snapshot_info, geometry_hash, 40);
OFFSET(lk_snapshot_info, plan_hash, 48);
OFFSET(lk_snapshot_info, fingerprint_bytes, 56);
OFFSET(lk_snapshot_info, fingerprint, 60);
OFFSET(lk_snapshot_info, reserved, 316);
OFFSET(lk_snapshot_info, n_state_versions, 320);
OFFSET(lk_snapshot_info, version_bytes, 328);
OFFSET(lk_snapshot_info, n_states, 336);
OFFSET(lk_snapshot_info, reserved2, 340);

SIZE(lk_state, 40);
OFFSET(lk_state, size, 0);
OFFSET(lk_state, memory, 4);
OFFSET(lk_state, data, 8);
OFFSET(lk_state, buffer, 16);
OFFSET(lk_state, offset_bytes, 24);
OFFSET(lk_state, bytes, 32);

SIZE(lk_snapshot_sequence, 40);
OFFSET(lk_snapshot_sequence, size, 0);
OFFSET(lk_snapshot_sequence, flags, 4);
OFFSET(lk_snapshot_sequence, id, 8);
OFFSET(lk_snapshot_sequence, n_tokens, 16);
OFFSET(lk_snapshot_sequence, n_blocks, 24);
OFFSET(lk_snapshot_sequence, n_shared_blocks, 32);

SIZE(lk_snapshot_format, 64);
OFFSET(lk_snapshot_format, size, 0);
OFFSET(lk_snapshot_format, is_value, 4);
OFFSET(lk_snapshot_format, head_dim, 8);
OFFSET(lk_snapshot_format, page_tokens, 12);
OFFSET(lk_snapshot_format, channels, 16);
OFFSET(lk_snapshot_format, n_pages, 40);
OFFSET(lk_snapshot_format, payload_bytes, 48);
OFFSET(lk_snapshot_format, metadata_bytes, 56);

SIZE(lk_bm25, 24);
OFFSET(lk_bm25, size, 0);
OFFSET(lk_bm25, chunk_tokens, 4);
OFFSET(lk_bm25, k1, 8);
OFFSET(lk_bm25, b, 16);

SIZE(lk_chunk_quota, 56);
OFFSET(lk_chunk_quota, size, 0);
OFFSET(lk_chunk_quota, block_chunks, 4);
OFFSET(lk_chunk_quota, low_share, 8);
OFFSET(lk_chunk_quota, high_share, 16);
OFFSET(lk_chunk_quota, budget_bytes, 24);
OFFSET(lk_chunk_quota, low_bytes, 32);
OFFSET(lk_chunk_quota, middle_bytes, 40);
OFFSET(lk_chunk_quota, high_bytes, 48);

SIZE(lk_chunk_attention, 32);
OFFSET(lk_chunk_attention, size, 0);
OFFSET(lk_chunk_attention, n_query_tokens, 4);
OFFSET(lk_chunk_attention, chunk_tokens, 8);
OFFSET(lk_chunk_attention, n_chunks, 12);
OFFSET(lk_chunk_attention, n_layers, 16);
OFFSET(lk_chunk_attention, reserved, 20);
OFFSET(lk_chunk_attention, layers, 24);

SIZE(lk_chunks_info, 64);
OFFSET(lk_chunks_info, size, 0);
OFFSET(lk_chunks_info, n_chunks, 4);
OFFSET(lk_chunks_info, chunk_tokens, 8);
OFFSET(lk_chunks_info, is_assigned, 12);
OFFSET(lk_chunks_info, deferral, 16);
OFFSET(lk_chunks_info, n_low, 20);
OFFSET(lk_chunks_info, n_middle, 24);
OFFSET(lk_chunks_info, n_high, 28);
OFFSET(lk_chunks_info, n_wider, 32);
OFFSET(lk_chunks_info, n_narrower, 36);
OFFSET(lk_chunks_info, first_token, 40);
OFFSET(lk_chunks_info, retained_bytes, 48);
OFFSET(lk_chunks_info, n_pending, 56);
OFFSET(lk_chunks_info, reserved, 60);

int main(void) { return 0; }
