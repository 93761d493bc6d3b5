// SPDX-License-Identifier: Apache-2.0
//! `<lowkey/chanmix.h>`.
use crate::*;

pub type lk_retrieval = u32;
constants!(lk_retrieval:
    LK_RETRIEVAL_NONE = 1,
    LK_RETRIEVAL_KEY = 2,
    LK_RETRIEVAL_KEY_VALUE = 3,
);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_chanmix {
    pub size: u32,
    pub retrieval: lk_retrieval,
    pub scope: lk_scope,
    pub outliers: u32,
    pub centers: u32,
    pub metadata: lk_metadata,
    pub group: u32,
    pub sink_tokens: u32,
    pub recent_tokens: u32,
    pub retrieval_share: f64,
    pub budget_bytes: u64,
    pub budget_tokens: u64,
    pub budget_sequences: u32,
    pub budget_step_tokens: u32,
    pub one_bit: lk_one_bit,
    pub reserved: u32,
}

extern "C" {
    pub fn lk_chanmix_init(options: *mut lk_chanmix, struct_bytes: usize) -> lk_status;
    pub fn lk_calibrator_chanmix(
        calibrator: *const lk_calibrator,
        options: *const lk_chanmix,
        out: *mut *mut lk_plan,
    ) -> lk_status;
}
