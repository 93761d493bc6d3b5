// SPDX-License-Identifier: Apache-2.0
//! `<lowkey/auto.h>`.
use crate::*;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_auto {
    pub size: u32,
    pub centers: u32,
    pub sink_tokens: u32,
    pub recent_tokens: u32,
    pub bits_per_value: f64,
    pub budget_bytes: u64,
    pub budget_tokens: u64,
    pub budget_sequences: u32,
    pub budget_step_tokens: u32,
}

extern "C" {
    pub fn lk_auto_init(options: *mut lk_auto, struct_bytes: usize) -> lk_status;
    pub fn lk_calibrator_auto(
        calibrator: *const lk_calibrator,
        options: *const lk_auto,
        out: *mut *mut lk_plan,
    ) -> lk_status;
}
