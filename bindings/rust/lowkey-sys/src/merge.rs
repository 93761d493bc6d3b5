// SPDX-License-Identifier: Apache-2.0
//! `<lowkey/merge.h>`.
use crate::*;

pub const LK_MERGE_SPLITS: u32 = 16;

extern "C" {
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
}
