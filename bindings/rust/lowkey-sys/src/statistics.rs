// SPDX-License-Identifier: Apache-2.0
//! `<lowkey/statistics.h>`.
use crate::*;
use std::os::raw::c_void;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_probe {
    pub size: u32,
    pub prefix_tokens: u32,
    pub period_tokens: u32,
    pub sink_tokens: u32,
    pub local_tokens: u32,
}
pub type lk_statistic = u32;
constants!(lk_statistic:
    LK_STATISTIC_KEY_MIN = 1,
    LK_STATISTIC_KEY_MAX = 2,
    LK_STATISTIC_KEY_RANGE = 3,
    LK_STATISTIC_KEY_MEAN = 4,
    LK_STATISTIC_KEY_MAGNITUDE = 5,
    LK_STATISTIC_QUERY_MAGNITUDE = 6,
);
constants!(u8: LK_CHANNEL_SUBNORMAL = 1, LK_CHANNEL_NORMAL = 2, LK_CHANNEL_OUTLIER = 3);
pub type lk_sensitivity = u32;
constants!(lk_sensitivity: LK_SENSITIVITY_GRADIENT = 1, LK_SENSITIVITY_OUTPUT = 2);
pub type lk_scope = u32;
constants!(lk_scope: LK_SCOPE_HEAD = 1, LK_SCOPE_LAYER = 2);
pub const LK_COST_CLIPS: u32 = 2;

extern "C" {
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
        n_probe_queries: *mut u64,
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
