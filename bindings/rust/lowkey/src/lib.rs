// SPDX-License-Identifier: Apache-2.0
//! The key/value cache of language models in packed pages of 1 to 16 bits, and attention on the
//! packed bytes: the safe side of liblowkey.
//!
//! A [`Context`] is an open device, a [`Cache`] belongs to it, a [`Sequence`] to the cache. A
//! [`Step`] takes the new tokens of one or more sequences through all layers; dropping it without
//! [`Step::commit`] drops them. Lifetimes and `Send`/`Sync` express the rules of the C headers.
//!
//! ```
//! use lowkey::*;
//! # fn main() -> Result<()> {
//! let context = Context::cpu()?;
//! let geometry = Geometry::uniform(2, Layer::new(4, 2, 64));
//! let plan = Plan::preset("kitty-pro", &geometry)?;
//! let bytes = plan.bytes(1024, 1, 256)?;
//! let cache = Cache::new(&context, &geometry, &plan, CacheOptions::new(bytes.cache_bytes))?;
//! let sequence = cache.add_sequence()?;
//!
//! let (kv, q) = (vec![0.5f32; 3 * 2 * 64], vec![0.5f32; 3 * 4 * 64]);
//! let mut out = vec![0f32; q.len()];
//! let mut step = cache.step(&[(&sequence, 3)])?;
//! for layer in 0..2 {
//!     let (k, v) = (Tensor::new(&kv, 2, 64)?, Tensor::new(&kv, 2, 64)?);
//!     step.append(layer, k, v)?
//!         .attend(Tensor::new(&q, 4, 64)?, TensorMut::new(&mut out, 4, 64)?)?;
//! }
//! step.commit()?;
//! assert_eq!(sequence.len()?, 3);
//! # Ok(())
//! # }
//! ```

mod cache;
pub mod chunks;
mod context;
mod error;
mod geometry;
mod merge;
mod plan;
mod pressure;
mod rules;
mod snapshot;
mod state;
mod step;
mod tensor;

pub use cache::{Cache, CacheOptions, Monitor, Sequence, Stats};
pub use chunks::{Chunks, Defer};
pub use context::{devices, Backend, Capability, Context, ContextOptions, DeviceInfo, LogLevel};
pub use error::{Error, ErrorKind, Result};
pub use geometry::{Geometry, Layer};
pub use lowkey_sys as sys;
pub use merge::merge;
pub use plan::{Plan, PlanSize};
pub use pressure::{Pressure, PressureAction};
pub use rules::{
    Axis, Boost, ChunkClass, ChunkMix, ChunkRule, KeyRule, Metadata, OneBit, Ranking, Rotation,
    ValueRule, Which,
};
pub use snapshot::SnapshotOptions;
pub use state::{StateMemory, StateOptions};
pub use step::{Appended, Queue, Step, StepOptions};
pub use tensor::{Bf16, Element, Tensor, TensorMut, F16};

/// The release of the library that is loaded, "major.minor.patch".
pub fn version() -> &'static str {
    // SAFETY: static text.
    unsafe { error::static_text(sys::lk_version()) }.unwrap_or("")
}

/// Version, compiler, backends and options of the library that is loaded.
pub fn build_info() -> &'static str {
    // SAFETY: static text.
    unsafe { error::static_text(sys::lk_build_info()) }.unwrap_or("")
}
