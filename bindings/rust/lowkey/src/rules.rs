// SPDX-License-Identifier: Apache-2.0
use crate::error::{initial, Result};
use lowkey_sys as sys;

/// How groups run, which share one range and one minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Consecutive tokens of one channel.
    Channel,
    /// Consecutive channels of one token.
    Token,
}

/// How a page ranks the key channels that it boosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ranking {
    /// Mean |K| over the page.
    Key,
    /// Mean |Q| of all tokens so far x range of K over the page.
    QueryRange,
}

/// Channels of each page that are kept at more bits than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Boost {
    pub channels: u32,
    pub bits: u32,
    pub ranking: Ranking,
}

/// The two values that 1-bit codes stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OneBit {
    /// Mean -+ mean absolute deviation of the group.
    Deviation,
    /// Minimum and maximum of the group, as the papers have it.
    Range,
}

impl OneBit {
    pub(crate) fn raw(self) -> sys::lk_one_bit {
        match self {
            OneBit::Deviation => sys::LK_ONE_BIT_DEVIATION,
            OneBit::Range => sys::LK_ONE_BIT_RANGE,
        }
    }
}

/// Keys of a KV head; see `lk_key_rule`.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRule {
    pub bits: u32,
    pub axis: Axis,
    /// Tokens or channels of a group; 0 = the page or the head.
    pub group: u32,
    pub boost: Option<Boost>,
    /// `[head_dim]` channel classes; not together with a boost.
    pub channel_bits: Option<Vec<u8>>,
    pub one_bit: OneBit,
    /// Share of its range, about the midpoint, that a group packed at 2 bits keeps; 1 = the whole.
    pub clip: f32,
}

impl KeyRule {
    pub fn new(bits: u32) -> Self {
        KeyRule {
            bits,
            axis: Axis::Channel,
            group: 0,
            boost: None,
            channel_bits: None,
            one_bit: OneBit::Deviation,
            clip: 1.0,
        }
    }
}

/// Values of a KV head; see `lk_value_rule`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueRule {
    pub bits: u32,
    /// Channels of a group; 0 = the head.
    pub group: u32,
    pub one_bit: OneBit,
    /// As for keys.
    pub clip: f32,
}

impl ValueRule {
    pub fn new(bits: u32) -> Self {
        ValueRule { bits, group: 0, one_bit: OneBit::Deviation, clip: 1.0 }
    }
}

/// The number format of ranges and minima.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Metadata {
    F16,
    /// e4m3fnuz
    F8,
}

/// What turns the keys of a layer, and queries, before packing; see `lk_rotation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rotation {
    None,
    Hadamard,
}

/// The class of a chunk: how relevant it is, and so at which width it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChunkClass {
    Low,
    Middle,
    High,
}

impl ChunkClass {
    pub(crate) fn raw(class: Option<Self>) -> sys::lk_chunk_class {
        match class {
            None => sys::LK_CHUNK_NONE,
            Some(ChunkClass::Low) => sys::LK_CHUNK_LOW,
            Some(ChunkClass::Middle) => sys::LK_CHUNK_MIDDLE,
            Some(ChunkClass::High) => sys::LK_CHUNK_HIGH,
        }
    }

    pub(crate) fn from_raw(raw: sys::lk_chunk_class) -> Option<Self> {
        match raw {
            sys::LK_CHUNK_LOW => Some(ChunkClass::Low),
            sys::LK_CHUNK_MIDDLE => Some(ChunkClass::Middle),
            sys::LK_CHUNK_HIGH => Some(ChunkClass::High),
            _ => None,
        }
    }
}

/// Classes of a context's chunks; see `lk_chunk_rule`. The default is Cocktail as published.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkRule {
    pub chunk_tokens: u32,
    /// Upper limits of the widths of a class: 2, 4, 8 or 16, ascending.
    pub low_bits: u32,
    pub middle_bits: u32,
    pub high_bits: u32,
    /// These set the thresholds between the classes; from 0, with a sum below 1.
    pub alpha: f32,
    pub beta: f32,
    /// Pages of one class are neighbours.
    pub reorder: bool,
    /// Tokens after the context stay at 16 bits.
    pub hold: bool,
}

impl Default for ChunkRule {
    fn default() -> Self {
        ChunkRule {
            chunk_tokens: 32,
            low_bits: 2,
            middle_bits: 4,
            high_bits: 16,
            alpha: 0.6,
            beta: 0.1,
            reorder: true,
            hold: true,
        }
    }
}

/// How many chunks of a context have each class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkMix {
    pub n_low: u32,
    pub n_middle: u32,
    pub n_high: u32,
}

impl ChunkMix {
    pub(crate) fn raw(self) -> Result<sys::lk_chunk_mix> {
        let mut raw = initial(sys::lk_chunk_mix_init)?;
        raw.n_low = self.n_low;
        raw.n_middle = self.n_middle;
        raw.n_high = self.n_high;
        Ok(raw)
    }
}

/// The layers or KV heads that a setter changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    All,
    Only(u32),
}

impl Which {
    pub(crate) fn raw(self) -> u32 {
        match self {
            Which::All => sys::LK_ALL,
            Which::Only(index) => index,
        }
    }
}
