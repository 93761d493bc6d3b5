// SPDX-License-Identifier: Apache-2.0
//! `<lowkey/costs.h>`.
use crate::*;
use std::os::raw::{c_char, c_void};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_cost_options {
    pub size: u32,
    pub n_kinds: u32,
    pub n_documents: u32,
    pub clips: u32,
    pub sink_tokens: u32,
    pub recent_tokens: u32,
    pub fingerprint: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_cost_trial {
    pub size: u32,
    pub document: u32,
    pub layer: u32,
    pub kv_head: u32,
    pub is_value: u32,
    pub clip: f32,
}
constants!(u32: LK_COST_TEXTS = 4, LK_COST_REFERENCE = u32::MAX);

extern "C" {
    pub fn lk_cost_options_init(options: *mut lk_cost_options, struct_bytes: usize) -> lk_status;
    pub fn lk_cost_trial_init(trial: *mut lk_cost_trial, struct_bytes: usize) -> lk_status;
    pub fn lk_cost_run_create(
        geometry: *const lk_geometry,
        options: *const lk_cost_options,
        out: *mut *mut lk_cost_run,
    ) -> lk_status;
    pub fn lk_cost_run_destroy(run: *mut *mut lk_cost_run);
    pub fn lk_cost_run_next(
        run: *mut lk_cost_run,
        capacity: u32,
        trials: *mut u32,
        n_trials: *mut u32,
    ) -> lk_status;
    pub fn lk_cost_run_get_trial(
        run: *const lk_cost_run,
        trial: u32,
        out: *mut lk_cost_trial,
    ) -> lk_status;
    pub fn lk_cost_run_plan(
        run: *const lk_cost_run,
        trial: u32,
        out: *mut *mut lk_plan,
    ) -> lk_status;
    pub fn lk_divergence(
        exact: *const lk_tensor,
        other: *const lk_tensor,
        n_rows: u32,
        n_vocabulary: u32,
        bits: *mut f64,
    ) -> lk_status;
    pub fn lk_cost_run_add(run: *mut lk_cost_run, trial: u32, bits: f64) -> lk_status;
    pub fn lk_cost_run_get_counts(
        run: *const lk_cost_run,
        n_measured: *mut u32,
        n_trials: *mut u32,
    ) -> lk_status;
    pub fn lk_cost_run_finish(run: *const lk_cost_run, calibrator: *mut lk_calibrator)
        -> lk_status;
    pub fn lk_cost_run_to_bytes(
        run: *const lk_cost_run,
        buffer: *mut c_void,
        capacity_bytes: usize,
        needed_bytes: *mut usize,
    ) -> lk_status;
    pub fn lk_cost_run_resume(
        run: *mut lk_cost_run,
        bytes: *const c_void,
        n_bytes: usize,
    ) -> lk_status;
    pub fn lk_cost_texts(
        text: *const c_char,
        text_bytes: usize,
        n_documents: u32,
        document_bytes: u32,
        seed: u64,
        buffer: *mut c_char,
        capacity_bytes: usize,
        needed_bytes: *mut usize,
    ) -> lk_status;
}
