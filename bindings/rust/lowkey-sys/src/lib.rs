// SPDX-License-Identifier: Apache-2.0
//! Raw declarations of liblowkey, a module for each header. The headers `<lowkey/*.h>` are the
//! documentation, and `tests/layout.rs` compares every struct, constant and function with them.
//! Most programs need the crate `lowkey` instead.
#![allow(non_camel_case_types)]

use std::marker::{PhantomData, PhantomPinned};

macro_rules! opaque {
    ($($name:ident),*) => {$(
        /// Opaque; only pointers to it exist.
        #[repr(C)]
        pub struct $name {
            _data: [u8; 0],
            _marker: PhantomData<(*mut u8, PhantomPinned)>,
        }
    )*};
}
opaque!(lk_context, lk_plan, lk_cache, lk_snapshot, lk_calibrator, lk_cost_run);

/// Constants of one C type.
macro_rules! constants {
    ($type:ty: $($name:ident = $value:expr),* $(,)?) => {$(
        pub const $name: $type = $value;
    )*};
}

mod auto;
mod base;
mod cache;
mod chanmix;
mod chunks;
mod context;
mod costs;
mod merge;
mod plan;
mod pmkvq;
mod rope;
mod snapshot;
mod state;
mod statistics;
mod step;
mod vulkan;

pub use auto::*;
pub use base::*;
pub use cache::*;
pub use chanmix::*;
pub use chunks::*;
pub use context::*;
pub use costs::*;
pub use merge::*;
pub use plan::*;
pub use pmkvq::*;
pub use rope::*;
pub use snapshot::*;
pub use state::*;
pub use statistics::*;
pub use step::*;
pub use vulkan::*;
