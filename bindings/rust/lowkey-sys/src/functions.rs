//! The functions, header by header.
use crate::*;
use std::os::raw::{c_char, c_void};

extern "C" {
    // base.h
    pub fn lk_status_name(status: lk_status) -> *const c_char;
    pub fn lk_status_text(status: lk_status) -> *const c_char;
    pub fn lk_last_error(
        buffer: *mut c_char,
        capacity_bytes: usize,
        needed_bytes: *mut usize,
    ) -> lk_status;
    pub fn lk_version() -> *const c_char;
    pub fn lk_abi_version() -> u32;
    pub fn lk_build_info() -> *const c_char;
    pub fn lk_tensor_init(tensor: *mut lk_tensor, struct_bytes: usize) -> lk_status;
    pub fn lk_queue_init(queue: *mut lk_queue, struct_bytes: usize) -> lk_status;

    // context.h
    pub fn lk_device_info_init(info: *mut lk_device_info, struct_bytes: usize) -> lk_status;
    pub fn lk_device_count(count: *mut u32) -> lk_status;
    pub fn lk_device_get(ordinal: u32, info: *mut lk_device_info) -> lk_status;
    pub fn lk_context_desc_init(desc: *mut lk_context_desc, struct_bytes: usize) -> lk_status;
    pub fn lk_context_open(
        desc: *const lk_context_desc,
        abi_version: u32,
        out: *mut *mut lk_context,
    ) -> lk_status;
    pub fn lk_context_close(context: *mut *mut lk_context) -> lk_status;
    pub fn lk_context_device(context: *const lk_context, info: *mut lk_device_info) -> lk_status;
    pub fn lk_capability_init(capability: *mut lk_capability, struct_bytes: usize) -> lk_status;
    pub fn lk_context_supports(
        context: *const lk_context,
        capability: *const lk_capability,
    ) -> lk_status;

    // vulkan.h
    pub fn lk_vulkan_desc_init(desc: *mut lk_vulkan_desc, struct_bytes: usize) -> lk_status;
    pub fn lk_vulkan_buffer_add(
        context: *mut lk_context,
        buffer: u64,
        bytes: u64,
        usage: u32,
    ) -> lk_status;
    pub fn lk_vulkan_buffer_remove(context: *mut lk_context, buffer: u64) -> lk_status;
    pub fn lk_vulkan_pipeline_cache(
        context: *const lk_context,
        buffer: *mut c_void,
        capacity_bytes: u64,
        needed_bytes: *mut u64,
    ) -> lk_status;

    // plan.h
    pub fn lk_layer_init(layer: *mut lk_layer, struct_bytes: usize) -> lk_status;
    pub fn lk_geometry_init(geometry: *mut lk_geometry, struct_bytes: usize) -> lk_status;
    pub fn lk_key_rule_init(rule: *mut lk_key_rule, struct_bytes: usize) -> lk_status;
    pub fn lk_value_rule_init(rule: *mut lk_value_rule, struct_bytes: usize) -> lk_status;
    pub fn lk_plan_preset_name(index: u32) -> *const c_char;
    pub fn lk_plan_preset(
        name: *const c_char,
        geometry: *const lk_geometry,
        out: *mut *mut lk_plan,
    ) -> lk_status;
    pub fn lk_plan_copy(plan: *const lk_plan, out: *mut *mut lk_plan) -> lk_status;
    pub fn lk_plan_destroy(plan: *mut *mut lk_plan);
    pub fn lk_plan_set_name(plan: *mut lk_plan, name: *const c_char) -> lk_status;
    pub fn lk_plan_set_key(
        plan: *mut lk_plan,
        layer: u32,
        kv_head: u32,
        rule: *const lk_key_rule,
    ) -> lk_status;
    pub fn lk_plan_set_value(
        plan: *mut lk_plan,
        layer: u32,
        kv_head: u32,
        rule: *const lk_value_rule,
    ) -> lk_status;
    pub fn lk_plan_set_metadata(plan: *mut lk_plan, layer: u32, metadata: lk_metadata)
        -> lk_status;
    pub fn lk_chunk_mix_init(mix: *mut lk_chunk_mix, struct_bytes: usize) -> lk_status;
    pub fn lk_plan_chunk_bytes(
        plan: *const lk_plan,
        n_tokens: u64,
        n_sequences: u32,
        step_tokens: u32,
        mix: *const lk_chunk_mix,
        out: *mut lk_plan_size,
    ) -> lk_status;
    pub fn lk_chunk_rule_init(rule: *mut lk_chunk_rule, struct_bytes: usize) -> lk_status;
    pub fn lk_plan_set_pages(plan: *mut lk_plan, page_tokens: u32) -> lk_status;
    pub fn lk_plan_set_chunks(plan: *mut lk_plan, rule: *const lk_chunk_rule) -> lk_status;
    pub fn lk_plan_get_chunks(plan: *const lk_plan, rule: *mut lk_chunk_rule) -> lk_status;
    pub fn lk_plan_set_recent(
        plan: *mut lk_plan,
        sink_tokens: u32,
        recent_tokens: u32,
    ) -> lk_status;
    pub fn lk_plan_set_ladder(
        plan: *mut lk_plan,
        layer: u32,
        rungs: *const u8,
        n_rungs: u32,
        rung: u32,
    ) -> lk_status;
    pub fn lk_plan_get_key(
        plan: *const lk_plan,
        layer: u32,
        kv_head: u32,
        rule: *mut lk_key_rule,
    ) -> lk_status;
    pub fn lk_plan_get_value(
        plan: *const lk_plan,
        layer: u32,
        kv_head: u32,
        rule: *mut lk_value_rule,
    ) -> lk_status;
    pub fn lk_plan_name(plan: *const lk_plan) -> *const c_char;
    pub fn lk_plan_get_pages(
        plan: *const lk_plan,
        page_tokens: *mut u32,
        sink_tokens: *mut u32,
        recent_tokens: *mut u32,
    ) -> lk_status;
    pub fn lk_plan_width(
        plan: *const lk_plan,
        layer: u32,
        kv_head: u32,
        is_value: u32,
        channel: u32,
        rung: u32,
        chunk_class: lk_chunk_class,
        bits: *mut u32,
        boost_bits: *mut u32,
    ) -> lk_status;
    pub fn lk_plan_validate(plan: *const lk_plan, geometry: *const lk_geometry) -> lk_status;
    pub fn lk_plan_size_init(size: *mut lk_plan_size, struct_bytes: usize) -> lk_status;
    pub fn lk_plan_bytes(
        plan: *const lk_plan,
        n_tokens: u64,
        n_sequences: u32,
        step_tokens: u32,
        out: *mut lk_plan_size,
    ) -> lk_status;
    pub fn lk_plan_to_json(
        plan: *const lk_plan,
        buffer: *mut c_char,
        capacity_bytes: usize,
        needed_bytes: *mut usize,
    ) -> lk_status;
    pub fn lk_plan_from_json(
        text: *const c_char,
        text_bytes: usize,
        out: *mut *mut lk_plan,
    ) -> lk_status;

    pub fn lk_plan_set_key_centers(
        plan: *mut lk_plan,
        layer: u32,
        kv_head: u32,
        centers: *const f32,
    ) -> lk_status;
    pub fn lk_plan_get_key_centers(
        plan: *const lk_plan,
        layer: u32,
        kv_head: u32,
        centers: *mut *const f32,
    ) -> lk_status;
    pub fn lk_plan_set_key_scales(
        plan: *mut lk_plan,
        layer: u32,
        kv_head: u32,
        scales: *const f32,
    ) -> lk_status;
    pub fn lk_plan_get_key_scales(
        plan: *const lk_plan,
        layer: u32,
        kv_head: u32,
        scales: *mut *const f32,
    ) -> lk_status;

    pub fn lk_plan_set_shrink_order(plan: *mut lk_plan, layer: u32, order: u32) -> lk_status;
    pub fn lk_plan_get_ladder(
        plan: *const lk_plan,
        layer: u32,
        rungs: *mut u8,
        n_rungs: *mut u32,
        rung: *mut u32,
        shrink_order: *mut u32,
    ) -> lk_status;
    pub fn lk_chanmix_layout_init(layout: *mut lk_chanmix_layout, struct_bytes: usize)
        -> lk_status;
    pub fn lk_plan_chanmix_layout(
        plan: *const lk_plan,
        layer: u32,
        kv_head: u32,
        out: *mut lk_chanmix_layout,
    ) -> lk_status;
    pub fn lk_chanmix_pack(
        layout: *const lk_chanmix_layout,
        codes: *const u8,
        n_tokens: u32,
        bytes: *mut u8,
    ) -> lk_status;
    pub fn lk_chanmix_unpack(
        layout: *const lk_chanmix_layout,
        bytes: *const u8,
        n_tokens: u32,
        codes: *mut u8,
    ) -> lk_status;

    // cache.h
    pub fn lk_cache_desc_init(desc: *mut lk_cache_desc, struct_bytes: usize) -> lk_status;
    pub fn lk_cache_create(
        context: *mut lk_context,
        geometry: *const lk_geometry,
        plan: *const lk_plan,
        desc: *const lk_cache_desc,
        out: *mut *mut lk_cache,
    ) -> lk_status;
    pub fn lk_cache_destroy(cache: *mut *mut lk_cache);
    pub fn lk_cache_stats_init(stats: *mut lk_cache_stats, struct_bytes: usize) -> lk_status;
    pub fn lk_cache_get_stats(cache: *const lk_cache, stats: *mut lk_cache_stats) -> lk_status;
    pub fn lk_cache_get_budget(cache: *const lk_cache, budget_bytes: *mut u64) -> lk_status;
    pub fn lk_cache_set_budget(cache: *mut lk_cache, budget_bytes: u64) -> lk_status;
    pub fn lk_cache_shrink(cache: *mut lk_cache, layer: u32, bits: u32) -> lk_status;
    pub fn lk_cache_plan(cache: *const lk_cache) -> *const lk_plan;
    pub fn lk_cache_poll(cache: *const lk_cache) -> lk_status;
    pub fn lk_sequence_add(cache: *mut lk_cache, id: *mut lk_sequence) -> lk_status;
    pub fn lk_sequence_fork(
        cache: *mut lk_cache,
        parent: lk_sequence,
        n_tokens: u64,
        child: *mut lk_sequence,
    ) -> lk_status;
    pub fn lk_sequence_remove(cache: *mut lk_cache, id: lk_sequence) -> lk_status;
    pub fn lk_sequence_length(
        cache: *const lk_cache,
        id: lk_sequence,
        n_tokens: *mut u64,
    ) -> lk_status;
    pub fn lk_sequence_truncate(cache: *mut lk_cache, id: lk_sequence, n_tokens: u64) -> lk_status;

    // chunks.h
    pub fn lk_chunks_cosine(
        embeddings: *const lk_tensor,
        query: *const lk_tensor,
        n_chunks: u32,
        n_channels: u32,
        scores: *mut f32,
    ) -> lk_status;
    pub fn lk_chunks_score_cosine(
        context: *const lk_context,
        queue: *const lk_queue,
        embeddings: *const lk_tensor,
        query: *const lk_tensor,
        n_chunks: u32,
        n_channels: u32,
        scores: *const lk_tensor,
    ) -> lk_status;
    pub fn lk_bm25_init(options: *mut lk_bm25, struct_bytes: usize) -> lk_status;
    pub fn lk_chunks_score_bm25(
        options: *const lk_bm25,
        tokens: *const u32,
        starts: *const u64,
        n_chunks: u32,
        query: *const u32,
        n_query_tokens: u32,
        scores: *mut f32,
    ) -> lk_status;
    pub fn lk_chunks_by_thresholds(
        scores: *const f32,
        n_chunks: u32,
        alpha: f64,
        beta: f64,
        classes: *mut lk_chunk_class,
        low: *mut f64,
        high: *mut f64,
    ) -> lk_status;
    pub fn lk_chunk_quota_init(quota: *mut lk_chunk_quota, struct_bytes: usize) -> lk_status;
    pub fn lk_chunks_by_quota(
        scores: *const f32,
        n_chunks: u32,
        quota: *const lk_chunk_quota,
        classes: *mut lk_chunk_class,
        n_bytes: *mut u64,
    ) -> lk_status;
    pub fn lk_chunk_attention_init(watch: *mut lk_chunk_attention, struct_bytes: usize) -> lk_status;
    pub fn lk_chunks_score_attention(
        cache: *mut lk_cache,
        id: lk_sequence,
        watch: *const lk_chunk_attention,
    ) -> lk_status;
    pub fn lk_chunks_attention_scores(
        cache: *mut lk_cache,
        id: lk_sequence,
        n_chunks: u32,
        scores: *mut f32,
    ) -> lk_status;
    pub fn lk_sequence_defer(cache: *mut lk_cache, id: lk_sequence, mode: lk_defer) -> lk_status;
    pub fn lk_chunks_assign(
        cache: *mut lk_cache,
        id: lk_sequence,
        n_context_tokens: u64,
        n_chunks: u32,
        classes: *const lk_chunk_class,
        scores: *const f32,
    ) -> lk_status;
    pub fn lk_chunks_retain(cache: *mut lk_cache, id: lk_sequence, budget_bytes: u64) -> lk_status;
    pub fn lk_chunks_info_init(info: *mut lk_chunks_info, struct_bytes: usize) -> lk_status;
    pub fn lk_chunks_get(
        cache: *const lk_cache,
        id: lk_sequence,
        info: *mut lk_chunks_info,
        capacity: u32,
        assigned: *mut lk_chunk_class,
        stored: *mut lk_chunk_class,
        order: *mut u32,
    ) -> lk_status;

    // step.h
    pub fn lk_step_begin(
        cache: *mut lk_cache,
        queue: *const lk_queue,
        n_sequences: u32,
        ids: *const lk_sequence,
        n_tokens: *const u32,
        parent: *const i32,
    ) -> lk_status;
    pub fn lk_append(
        cache: *mut lk_cache,
        layer: u32,
        k: *const lk_tensor,
        v: *const lk_tensor,
    ) -> lk_status;
    pub fn lk_attend(
        cache: *mut lk_cache,
        layer: u32,
        q: *const lk_tensor,
        out: *const lk_tensor,
        lse: *const lk_tensor,
    ) -> lk_status;
    pub fn lk_step_replay(cache: *mut lk_cache) -> lk_status;
    pub fn lk_step_commit(cache: *mut lk_cache, keep: *const u32) -> lk_status;
    pub fn lk_step_commit_tokens(
        cache: *mut lk_cache,
        n_kept: *const u32,
        kept: *const u32,
    ) -> lk_status;
    pub fn lk_step_discard(cache: *mut lk_cache) -> lk_status;

    // merge.h
    pub fn lk_merge(
        context: *const lk_context,
        queue: *const lk_queue,
        n_tokens: u32,
        n_heads: u32,
        head_dim: u32,
        n_splits: u32,
        outs: *const *const lk_tensor,
        lses: *const *const lk_tensor,
        out: *const lk_tensor,
        lse: *const lk_tensor,
    ) -> lk_status;

    // snapshot.h
    pub fn lk_snapshot_desc_init(desc: *mut lk_snapshot_desc, struct_bytes: usize) -> lk_status;
    pub fn lk_snapshot_save(
        cache: *mut lk_cache,
        n_sequences: u32,
        ids: *const lk_sequence,
        desc: *const lk_snapshot_desc,
        write: lk_write_fn,
        user: *mut c_void,
    ) -> lk_status;
    pub fn lk_snapshot_save_memory(
        cache: *mut lk_cache,
        n_sequences: u32,
        ids: *const lk_sequence,
        desc: *const lk_snapshot_desc,
        buffer: *mut c_void,
        capacity_bytes: u64,
        needed_bytes: *mut u64,
    ) -> lk_status;
    pub fn lk_snapshot_save_file(
        cache: *mut lk_cache,
        n_sequences: u32,
        ids: *const lk_sequence,
        desc: *const lk_snapshot_desc,
        path: *const c_char,
    ) -> lk_status;
    pub fn lk_snapshot_load(
        cache: *mut lk_cache,
        desc: *const lk_snapshot_desc,
        read: lk_read_fn,
        user: *mut c_void,
        capacity: u32,
        ids: *mut lk_sequence,
        n_sequences: *mut u32,
    ) -> lk_status;
    pub fn lk_snapshot_load_memory(
        cache: *mut lk_cache,
        desc: *const lk_snapshot_desc,
        data: *const c_void,
        n_bytes: u64,
        capacity: u32,
        ids: *mut lk_sequence,
        n_sequences: *mut u32,
    ) -> lk_status;
    pub fn lk_snapshot_load_file(
        cache: *mut lk_cache,
        desc: *const lk_snapshot_desc,
        path: *const c_char,
        capacity: u32,
        ids: *mut lk_sequence,
        n_sequences: *mut u32,
    ) -> lk_status;
    pub fn lk_snapshot_open_memory(
        data: *const c_void,
        n_bytes: u64,
        out: *mut *mut lk_snapshot,
    ) -> lk_status;
    pub fn lk_snapshot_open_file(path: *const c_char, out: *mut *mut lk_snapshot) -> lk_status;
    pub fn lk_snapshot_close(snapshot: *mut *mut lk_snapshot);
    pub fn lk_snapshot_info_init(info: *mut lk_snapshot_info, struct_bytes: usize) -> lk_status;
    pub fn lk_snapshot_get_info(
        snapshot: *const lk_snapshot,
        info: *mut lk_snapshot_info,
    ) -> lk_status;
    pub fn lk_snapshot_plan(snapshot: *const lk_snapshot) -> *const lk_plan;
    pub fn lk_snapshot_sequence_init(
        sequence: *mut lk_snapshot_sequence,
        struct_bytes: usize,
    ) -> lk_status;
    pub fn lk_snapshot_get_sequence(
        snapshot: *const lk_snapshot,
        index: u32,
        sequence: *mut lk_snapshot_sequence,
    ) -> lk_status;
    pub fn lk_snapshot_format_init(kind: *mut lk_snapshot_format, struct_bytes: usize) -> lk_status;
    pub fn lk_snapshot_get_format(
        snapshot: *const lk_snapshot,
        index: u32,
        kind: *mut lk_snapshot_format,
    ) -> lk_status;

    // calibrate.h
    pub fn lk_calibrator_create(
        geometry: *const lk_geometry,
        out: *mut *mut lk_calibrator,
    ) -> lk_status;
    pub fn lk_calibrator_destroy(calibrator: *mut *mut lk_calibrator);
    pub fn lk_calibrator_add_keys(
        calibrator: *mut lk_calibrator,
        layer: u32,
        keys: *const lk_tensor,
        n_tokens: u32,
    ) -> lk_status;
    pub fn lk_calibrator_add_queries(
        calibrator: *mut lk_calibrator,
        layer: u32,
        queries: *const lk_tensor,
        n_tokens: u32,
    ) -> lk_status;
    pub fn lk_probe_init(probe: *mut lk_probe, struct_bytes: usize) -> lk_status;
    pub fn lk_probe_tokens(
        probe: *const lk_probe,
        prefix: *const u32,
        sentence: *const u32,
        n_repeats: u32,
        tokens: *mut u32,
        capacity: u64,
        n_tokens: *mut u64,
    ) -> lk_status;
    pub fn lk_calibrator_add_probe(
        calibrator: *mut lk_calibrator,
        layer: u32,
        probe: *const lk_probe,
        queries: *const lk_tensor,
        keys: *const lk_tensor,
        n_tokens: u32,
    ) -> lk_status;
    pub fn lk_calibrator_get_channels(
        calibrator: *const lk_calibrator,
        layer: u32,
        kv_head: u32,
        statistic: lk_statistic,
        values: *mut f32,
    ) -> lk_status;
    pub fn lk_calibrator_get_counts(
        calibrator: *const lk_calibrator,
        layer: u32,
        n_keys: *mut u64,
        n_queries: *mut u64,
        n_probe_rows: *mut u64,
    ) -> lk_status;
    pub fn lk_calibrator_get_geometry(
        calibrator: *const lk_calibrator,
        layers: *mut lk_layer,
        capacity: u32,
        n_layers: *mut u32,
    ) -> lk_status;
    pub fn lk_calibrator_get_classes(
        calibrator: *const lk_calibrator,
        layer: u32,
        kv_head: u32,
        scope: lk_scope,
        classes: *mut u8,
        centroids: *mut f32,
    ) -> lk_status;
    pub fn lk_calibrator_get_retrieval(
        calibrator: *const lk_calibrator,
        layer: u32,
        kv_head: u32,
        score: *mut f32,
    ) -> lk_status;
    pub fn lk_calibrator_set_costs(
        calibrator: *mut lk_calibrator,
        layer: u32,
        costs: *const f64,
    ) -> lk_status;
    pub fn lk_calibrator_get_costs(
        calibrator: *const lk_calibrator,
        layer: u32,
        costs: *mut f64,
    ) -> lk_status;
    pub fn lk_calibrator_set_clip_costs(
        calibrator: *mut lk_calibrator,
        layer: u32,
        costs: *const f64,
    ) -> lk_status;
    pub fn lk_calibrator_get_clip_costs(
        calibrator: *const lk_calibrator,
        layer: u32,
        costs: *mut f64,
    ) -> lk_status;
    pub fn lk_calibrator_add_gradients(
        calibrator: *mut lk_calibrator,
        layer: u32,
        is_value: u32,
        samples: *const lk_tensor,
        gradients: *const lk_tensor,
        n_tokens: u32,
    ) -> lk_status;
    pub fn lk_calibrator_add_attention(
        calibrator: *mut lk_calibrator,
        layer: u32,
        queries: *const lk_tensor,
        keys: *const lk_tensor,
        values: *const lk_tensor,
        n_tokens: u32,
    ) -> lk_status;
    pub fn lk_calibrator_get_sensitivity(
        calibrator: *const lk_calibrator,
        layer: u32,
        kv_head: u32,
        is_value: u32,
        kind: lk_sensitivity,
        bits: u32,
        sensitivity: *mut f64,
    ) -> lk_status;
    pub fn lk_solve_widths(
        n_items: u32,
        n_choices: u32,
        costs: *const f64,
        bytes: *const u64,
        budget_bytes: u64,
        choices: *mut u32,
        total_cost: *mut f64,
    ) -> lk_status;
    pub fn lk_chanmix_init(options: *mut lk_chanmix, struct_bytes: usize) -> lk_status;
    pub fn lk_calibrator_chanmix(
        calibrator: *const lk_calibrator,
        options: *const lk_chanmix,
        out: *mut *mut lk_plan,
    ) -> lk_status;
    pub fn lk_auto_init(options: *mut lk_auto, struct_bytes: usize) -> lk_status;
    pub fn lk_calibrator_auto(
        calibrator: *const lk_calibrator,
        options: *const lk_auto,
        out: *mut *mut lk_plan,
    ) -> lk_status;
    pub fn lk_rope_init(rope: *mut lk_rope, struct_bytes: usize) -> lk_status;
    pub fn lk_rope_apply(
        rope: *const lk_rope,
        samples: *const lk_tensor,
        n_tokens: u32,
        n_heads: u32,
        head_dim: u32,
        first_position: u64,
        position_scale: f64,
        values: *mut f32,
    ) -> lk_status;
    pub fn lk_rope_invert(
        rope: *const lk_rope,
        samples: *const lk_tensor,
        n_tokens: u32,
        n_heads: u32,
        head_dim: u32,
        first_position: u64,
        position_scale: f64,
        values: *mut f32,
    ) -> lk_status;
    pub fn lk_calibrator_get_pair_maxima(
        calibrator: *const lk_calibrator,
        layer: u32,
        kv_head: u32,
        pairing: lk_rope_pairing,
        channels: u32,
        maxima: *mut f32,
    ) -> lk_status;
    pub fn lk_key_scales(
        maxima: *const f32,
        head_dim: u32,
        exponent: f64,
        scales: *mut f32,
    ) -> lk_status;
    pub fn lk_scale_search_init(search: *mut lk_scale_search, struct_bytes: usize) -> lk_status;
    pub fn lk_calibrator_add_scale_search(
        calibrator: *mut lk_calibrator,
        layer: u32,
        search: *const lk_scale_search,
        queries: *const lk_tensor,
        keys: *const lk_tensor,
        values: *const lk_tensor,
        n_tokens: u32,
    ) -> lk_status;
    pub fn lk_calibrator_get_scale_error(
        calibrator: *const lk_calibrator,
        layer: u32,
        index: u32,
        exponent: *mut f64,
        error: *mut f64,
    ) -> lk_status;
    pub fn lk_calibrator_get_key_scales(
        calibrator: *const lk_calibrator,
        layer: u32,
        kv_head: u32,
        scales: *mut f32,
        exponent: *mut f64,
    ) -> lk_status;
    pub fn lk_pmkvq_init(options: *mut lk_pmkvq, struct_bytes: usize) -> lk_status;
    pub fn lk_calibrator_pmkvq(
        calibrator: *const lk_calibrator,
        options: *const lk_pmkvq,
        out: *mut *mut lk_plan,
    ) -> lk_status;
    pub fn lk_calibrator_to_bytes(
        calibrator: *const lk_calibrator,
        buffer: *mut c_void,
        capacity_bytes: usize,
        needed_bytes: *mut usize,
    ) -> lk_status;
    pub fn lk_calibrator_from_bytes(
        bytes: *const c_void,
        n_bytes: usize,
        out: *mut *mut lk_calibrator,
    ) -> lk_status;
}
