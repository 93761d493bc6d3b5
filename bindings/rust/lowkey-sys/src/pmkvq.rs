// SPDX-License-Identifier: Apache-2.0
//! `<lowkey/pmkvq.h>`.
use crate::*;

pub const LK_SCALE_EXPONENTS: u32 = 21;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_scale_search {
    pub size: u32,
    pub pairing: lk_rope_pairing,
    pub channels: u32,
    pub key_bits: u32,
    pub value_bits: u32,
    pub query_step: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_pmkvq {
    pub size: u32,
    pub n_widths: u32,
    pub widths: [u32; 4],
    pub sensitivity: lk_sensitivity,
    pub scope: lk_scope,
    pub separate_values: u32,
    pub key_axis: lk_axis,
    pub group: u32,
    pub key_scales: u32,
    pub sink_tokens: u32,
    pub recent_tokens: u32,
    pub budget_bytes: u64,
    pub budget_tokens: u64,
    pub budget_sequences: u32,
    pub budget_step_tokens: u32,
    pub layer_budgets: u32,
    pub reserved: u32,
}

extern "C" {
    pub fn lk_solve_widths(
        n_items: u32,
        n_choices: u32,
        costs: *const f64,
        bytes: *const u64,
        budget_bytes: u64,
        choices: *mut u32,
        total_cost: *mut f64,
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
}
