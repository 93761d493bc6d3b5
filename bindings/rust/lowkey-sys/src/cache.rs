// SPDX-License-Identifier: Apache-2.0
//! `<lowkey/cache.h>`.
use crate::*;
use std::os::raw::c_void;

pub type lk_sequence = u64;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_cache_desc {
    pub size: u32,
    pub max_sequences: u32,
    pub max_step_tokens: u32,
    pub flags: u32,
    pub budget_bytes: u64,
    pub slab_bytes: u64,
    pub max_budget_bytes: u64,
    pub sequence_limit_bytes: u64,
    pub pressure: lk_pressure_fn,
    pub pressure_user: *mut c_void,
    pub state_bytes: *const u64,
    pub n_states: u32,
    pub state_versions: u32,
    pub state_interval_tokens: u32,
    pub reserved: u32,
}
pub const LK_CACHE_EVICT: u32 = 1;
pub const LK_CACHE_KEEP_WINDOWED: u32 = 2;

pub type lk_pressure_action = u32;
constants!(lk_pressure_action:
    LK_PRESSURE_REFUSE = 0,
    LK_PRESSURE_BUDGET = 1,
    LK_PRESSURE_REMOVE = 2,
);
pub type lk_pressure_fn = Option<
    unsafe extern "C" fn(user: *mut c_void, pressure: *mut lk_pressure) -> lk_pressure_action,
>;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_pressure {
    pub size: u32,
    pub capacity: u32,
    pub shortfall_bytes: u64,
    pub reserved_bytes: u64,
    pub budget_bytes: u64,
    pub ids: *mut lk_sequence,
    pub n_ids: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_cache_stats {
    pub size: u32,
    pub n_sequences: u32,
    pub n_tokens: u64,
    pub budget_bytes: u64,
    pub reserved_bytes: u64,
    pub payload_bytes: u64,
    pub metadata_bytes: u64,
    pub recent_bytes: u64,
    pub table_bytes: u64,
    pub workspace_bytes: u64,
    pub free_bytes: u64,
    pub pages_packed: u64,
    pub pages_dequantized: u64,
    pub values_saturated: u64,
    pub device_bytes: u64,
    pub shared_bytes: u64,
    pub pages_copied: u64,
    pub pages_shrunk: u64,
    pub sequences_evicted: u64,
    pub fragmented_bytes: u64,
    pub plane_bytes: [u64; 6],
    pub state_bytes: u64,
}
pub const LK_ALL_TOKENS: u64 = u64::MAX;

extern "C" {
    pub fn lk_cache_desc_init(desc: *mut lk_cache_desc, struct_bytes: usize) -> lk_status;
    pub fn lk_cache_bytes(
        plan: *const lk_plan,
        flags: u32,
        n_tokens: u64,
        n_sequences: u32,
        step_tokens: u32,
        out: *mut lk_plan_size,
    ) -> lk_status;
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
}
