// SPDX-License-Identifier: Apache-2.0
//! `<lowkey/rope.h>`.
use crate::*;

pub type lk_rope_pairing = u32;
constants!(lk_rope_pairing: LK_ROPE_HALVES = 1, LK_ROPE_INTERLEAVED = 2);
pub const LK_POSITION_SCALE: u32 = 4;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_rope {
    pub size: u32,
    pub pairing: lk_rope_pairing,
    pub channels: u32,
    pub reserved: u32,
    pub base: f64,
    pub frequencies: *const f64,
}

extern "C" {
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
}
