// SPDX-License-Identifier: Apache-2.0
//! `<lowkey/plan.h>`.
use crate::*;
use std::os::raw::c_char;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_layer {
    pub size: u32,
    pub n_query_heads: u32,
    pub n_kv_heads: u32,
    pub head_dim: u32,
    pub window_tokens: u32,
    pub window_sink_tokens: u32,
    pub scale: f32,
    pub soft_cap: f32,
    pub sink_logits: *const f32,
    pub kv_layer: u32,
    pub reserved: u32,
    pub value_dim: u32,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_geometry {
    pub size: u32,
    pub n_layers: u32,
    pub layers: *const lk_layer,
}

pub const LK_ALL: u32 = u32::MAX;
pub const LK_OWN_KV: u32 = u32::MAX;
pub const LK_LAYER_LATENT: u32 = 1;

pub type lk_axis = u32;
constants!(lk_axis: LK_AXIS_CHANNEL = 1, LK_AXIS_TOKEN = 2);
pub type lk_ranking = u32;
constants!(lk_ranking: LK_RANKING_KEY = 1, LK_RANKING_QUERY_RANGE = 2);

pub type lk_one_bit = u32;
constants!(lk_one_bit: LK_ONE_BIT_DEVIATION = 1, LK_ONE_BIT_RANGE = 2);

pub type lk_chunk_class = u32;
constants!(lk_chunk_class: LK_CHUNK_NONE = 0, LK_CHUNK_LOW = 1, LK_CHUNK_MIDDLE = 2,
           LK_CHUNK_HIGH = 3);
pub type lk_metadata = u32;
constants!(lk_metadata: LK_METADATA_F16 = 1, LK_METADATA_F8 = 2);
pub type lk_rotation = u32;
constants!(lk_rotation: LK_ROTATION_NONE = 0, LK_ROTATION_HADAMARD = 1);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_key_rule {
    pub size: u32,
    pub bits: u32,
    pub axis: lk_axis,
    pub group: u32,
    pub boost_channels: u32,
    pub boost_bits: u32,
    pub boost_ranking: lk_ranking,
    pub channel_bits: *const u8,
    pub one_bit: lk_one_bit,
    pub clip: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_value_rule {
    pub size: u32,
    pub bits: u32,
    pub group: u32,
    pub one_bit: lk_one_bit,
    pub clip: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_chunk_rule {
    pub size: u32,
    pub chunk_tokens: u32,
    pub low_bits: u32,
    pub middle_bits: u32,
    pub high_bits: u32,
    pub alpha: f32,
    pub beta: f32,
    pub reorder: u32,
    pub hold: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_chunk_mix {
    pub size: u32,
    pub n_low: u32,
    pub n_middle: u32,
    pub n_high: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_plan_size {
    pub size: u32,
    pub n_blocks: u32,
    pub bits_per_value: f64,
    pub bytes_per_token: f64,
    pub fp16_bytes: u64,
    pub payload_bytes: u64,
    pub metadata_bytes: u64,
    pub recent_bytes: u64,
    pub table_bytes: u64,
    pub cache_bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_chanmix_layout {
    pub size: u32,
    pub head_dim: u32,
    pub token_bytes: u32,
    pub reserved: u32,
    pub channel: [u8; 256],
    pub bits: [u8; 256],
    pub byte: [u8; 256],
    pub shift: [u8; 256],
}

extern "C" {
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
    pub fn lk_plan_default(
        geometry: *const lk_geometry,
        bits_per_value: f64,
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
    pub fn lk_plan_chunk_prefill_bytes(
        plan: *const lk_plan,
        n_tokens: u64,
        n_sequences: u32,
        step_tokens: u32,
        mix: *const lk_chunk_mix,
        budget_bytes: *mut u64,
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
    pub fn lk_plan_set_key_rotation(
        plan: *mut lk_plan,
        layer: u32,
        rotation: lk_rotation,
    ) -> lk_status;
    pub fn lk_plan_get_key_rotation(
        plan: *const lk_plan,
        layer: u32,
        rotation: *mut lk_rotation,
    ) -> lk_status;
    pub fn lk_plan_set_shrink_order(plan: *mut lk_plan, layer: u32, order: u32) -> lk_status;
    pub fn lk_plan_set_layer_budget(plan: *mut lk_plan, layer: u32, budget_bytes: u64)
        -> lk_status;
    pub fn lk_plan_get_layer_budget(
        plan: *const lk_plan,
        layer: u32,
        budget_bytes: *mut u64,
    ) -> lk_status;
    pub fn lk_plan_rung(
        plan: *const lk_plan,
        layer: u32,
        n_tokens: u64,
        n_sequences: u32,
        step_tokens: u32,
        rung: *mut u32,
    ) -> lk_status;
    pub fn lk_plan_get_layer(plan: *const lk_plan, layer: u32, out: *mut lk_layer) -> lk_status;
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
}
