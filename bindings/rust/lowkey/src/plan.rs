use crate::error::{check, initial, static_text, Error, Result};
use lowkey_sys as sys;
use std::ffi::CString;
use std::os::raw::c_char;
use std::ptr;

/// One attention layer of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// A multiple of `n_kv_heads`, 1 to 16 times as many.
    pub n_query_heads: u32,
    pub n_kv_heads: u32,
    /// A multiple of 16 from 32 to 256.
    pub head_dim: u32,
    /// A query attends to this many last tokens, itself included; 0 = all.
    pub window_tokens: u32,
    /// First tokens that stay visible outside the window.
    pub window_sink_tokens: u32,
    /// Scale of the logits; 0 = 1 / sqrt(head_dim).
    pub scale: f32,
    /// Logits become soft_cap x tanh(logit / soft_cap); 0 = off.
    pub soft_cap: f32,
    /// `[n_query_heads]`: a learned logit that joins each softmax without a value.
    pub sink_logits: Option<Vec<f32>>,
}

impl Layer {
    pub fn new(n_query_heads: u32, n_kv_heads: u32, head_dim: u32) -> Self {
        Layer {
            n_query_heads,
            n_kv_heads,
            head_dim,
            window_tokens: 0,
            window_sink_tokens: 0,
            scale: 0.0,
            soft_cap: 0.0,
            sink_logits: None,
        }
    }
}

/// A model's attention layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Geometry {
    pub layers: Vec<Layer>,
}

impl Geometry {
    pub fn uniform(n_layers: usize, layer: Layer) -> Self {
        Geometry { layers: vec![layer; n_layers] }
    }

    pub(crate) fn with_raw<R>(
        &self,
        use_it: impl FnOnce(*const sys::lk_geometry) -> Result<R>,
    ) -> Result<R> {
        let mut layers = Vec::with_capacity(self.layers.len());
        for (index, layer) in self.layers.iter().enumerate() {
            let mut raw = initial(sys::lk_layer_init)?;
            raw.n_query_heads = layer.n_query_heads;
            raw.n_kv_heads = layer.n_kv_heads;
            raw.head_dim = layer.head_dim;
            raw.window_tokens = layer.window_tokens;
            raw.window_sink_tokens = layer.window_sink_tokens;
            raw.scale = layer.scale;
            raw.soft_cap = layer.soft_cap;
            if let Some(logits) = &layer.sink_logits {
                if logits.len() != layer.n_query_heads as usize {
                    return Err(Error::argument(format!(
                        "layer {} has {} sink logits for {} query heads",
                        index,
                        logits.len(),
                        layer.n_query_heads
                    )));
                }
                raw.sink_logits = logits.as_ptr();
            }
            layers.push(raw);
        }
        let mut raw = initial(sys::lk_geometry_init)?;
        raw.n_layers = u32::try_from(layers.len()).unwrap_or(u32::MAX);
        raw.layers = layers.as_ptr();
        use_it(&raw)
    }
}

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
    fn raw(self) -> sys::lk_one_bit {
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

/// The exact bytes of a plan; see `lk_plan_size`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct PlanSize {
    pub n_pages: u32,
    pub bits_per_value: f64,
    pub bytes_per_token: f64,
    pub fp16_bytes: u64,
    pub payload_bytes: u64,
    pub metadata_bytes: u64,
    pub recent_bytes: u64,
    pub table_bytes: u64,
    pub cache_bytes: u64,
}

impl PlanSize {
    fn of(raw: &sys::lk_plan_size) -> Self {
        PlanSize {
            n_pages: raw.n_pages,
            bits_per_value: raw.bits_per_value,
            bytes_per_token: raw.bytes_per_token,
            fp16_bytes: raw.fp16_bytes,
            payload_bytes: raw.payload_bytes,
            metadata_bytes: raw.metadata_bytes,
            recent_bytes: raw.recent_bytes,
            table_bytes: raw.table_bytes,
            cache_bytes: raw.cache_bytes,
        }
    }
}

/// A quantization plan for one geometry.
pub struct Plan {
    raw: *mut sys::lk_plan,
}

// SAFETY: handles may move between threads; const calls may run at the same time, and the other
// calls take &mut self here.
unsafe impl Send for Plan {}
unsafe impl Sync for Plan {}

fn c_text(text: &str, name: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::argument(format!("{} has a zero byte inside", name)))
}

/// C reads head_dim numbers, at most 256; missing numbers become NaNs, which it refuses.
fn padded(numbers: Option<&[f32]>) -> Option<Vec<f32>> {
    numbers.map(|numbers| {
        let mut padded = numbers.to_vec();
        padded.resize(numbers.len().max(256), f32::NAN);
        padded
    })
}

impl Plan {
    /// Names of the presets.
    pub fn preset_names() -> Vec<&'static str> {
        (0..)
            // SAFETY: static text, or null past the last.
            .map_while(|index| unsafe { static_text(sys::lk_plan_preset_name(index)) })
            .collect()
    }

    pub fn preset(name: &str, geometry: &Geometry) -> Result<Self> {
        let name = c_text(name, "name")?;
        geometry.with_raw(|raw_geometry| {
            let mut raw = ptr::null_mut();
            // SAFETY: all are there for the call.
            unsafe { check(sys::lk_plan_preset(name.as_ptr(), raw_geometry, &mut raw))? };
            Ok(Plan { raw })
        })
    }

    /// Read a plan from untrusted text (docs/PLAN.md).
    pub fn from_json(text: &str) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the text has the passed length.
        unsafe {
            check(sys::lk_plan_from_json(text.as_ptr() as *const c_char, text.len(), &mut raw))?
        };
        Ok(Plan { raw })
    }

    pub fn to_json(&self) -> Result<String> {
        let mut needed = 0;
        // SAFETY: the buffers have the passed capacities.
        unsafe {
            check(sys::lk_plan_to_json(self.raw, ptr::null_mut(), 0, &mut needed))?;
            let mut text = vec![0u8; needed];
            check(sys::lk_plan_to_json(
                self.raw,
                text.as_mut_ptr() as *mut c_char,
                text.len(),
                &mut needed,
            ))?;
            text.pop(); // its zero
            Ok(String::from_utf8_lossy(&text).into_owned())
        }
    }

    pub fn try_clone(&self) -> Result<Self> {
        // SAFETY: the handle is alive.
        unsafe { Self::copy_of(self.raw) }
    }

    /// # Safety
    /// `plan` is alive.
    pub(crate) unsafe fn copy_of(plan: *const sys::lk_plan) -> Result<Self> {
        let mut raw = ptr::null_mut();
        check(sys::lk_plan_copy(plan, &mut raw))?;
        Ok(Plan { raw })
    }

    pub fn name(&self) -> String {
        // SAFETY: the text lives until the plan changes, and is copied at once.
        unsafe { static_text(sys::lk_plan_name(self.raw)) }.unwrap_or("").to_owned()
    }

    pub fn set_name(&mut self, name: &str) -> Result<&mut Self> {
        let name = c_text(name, "name")?;
        // SAFETY: as everywhere below, the handle is alive and arguments outlive the call.
        unsafe { check(sys::lk_plan_set_name(self.raw, name.as_ptr()))? };
        Ok(self)
    }

    pub fn set_key(&mut self, layer: Which, kv_head: Which, rule: &KeyRule) -> Result<&mut Self> {
        let mut raw = initial(sys::lk_key_rule_init)?;
        raw.bits = rule.bits;
        raw.axis = match rule.axis {
            Axis::Channel => sys::LK_AXIS_CHANNEL,
            Axis::Token => sys::LK_AXIS_TOKEN,
        };
        raw.group = rule.group;
        raw.one_bit = rule.one_bit.raw();
        raw.clip = rule.clip;
        if let Some(boost) = &rule.boost {
            raw.boost_channels = boost.channels;
            raw.boost_bits = boost.bits;
            raw.boost_ranking = match boost.ranking {
                Ranking::Key => sys::LK_RANKING_KEY,
                Ranking::QueryRange => sys::LK_RANKING_QUERY_RANGE,
            };
        }
        // The library reads head_dim bytes, at most 256; missing bytes are widths of 0, which it refuses.
        let padded;
        if let Some(bits) = &rule.channel_bits {
            let mut bytes = bits.clone();
            bytes.resize(bits.len().max(256), 0);
            padded = bytes;
            raw.channel_bits = padded.as_ptr();
        }
        unsafe { check(sys::lk_plan_set_key(self.raw, layer.raw(), kv_head.raw(), &raw))? };
        Ok(self)
    }

    pub fn set_value(
        &mut self,
        layer: Which,
        kv_head: Which,
        rule: ValueRule,
    ) -> Result<&mut Self> {
        let mut raw = initial(sys::lk_value_rule_init)?;
        raw.bits = rule.bits;
        raw.group = rule.group;
        raw.one_bit = rule.one_bit.raw();
        raw.clip = rule.clip;
        unsafe { check(sys::lk_plan_set_value(self.raw, layer.raw(), kv_head.raw(), &raw))? };
        Ok(self)
    }

    /// Constants that are subtracted from the key channels before they are stored, `[head_dim]`;
    /// None removes them. See `lk_plan_set_key_centers`.
    pub fn set_key_centers(
        &mut self,
        layer: Which,
        kv_head: Which,
        centers: Option<&[f32]>,
    ) -> Result<&mut Self> {
        let padded = padded(centers);
        let raw = padded.as_ref().map_or(ptr::null(), |numbers| numbers.as_ptr());
        unsafe { check(sys::lk_plan_set_key_centers(self.raw, layer.raw(), kv_head.raw(), raw))? };
        Ok(self)
    }

    /// Divisors of the key channels before they are stored, `[head_dim]`; None removes them. See
    /// `lk_plan_set_key_scales`.
    pub fn set_key_scales(
        &mut self,
        layer: Which,
        kv_head: Which,
        scales: Option<&[f32]>,
    ) -> Result<&mut Self> {
        let padded = padded(scales);
        let raw = padded.as_ref().map_or(ptr::null(), |numbers| numbers.as_ptr());
        unsafe { check(sys::lk_plan_set_key_scales(self.raw, layer.raw(), kv_head.raw(), raw))? };
        Ok(self)
    }

    /// Classes of a context's chunks; None = no chunks.
    pub fn set_chunks(&mut self, rule: Option<ChunkRule>) -> Result<&mut Self> {
        let mut raw = initial(sys::lk_chunk_rule_init)?;
        match rule {
            None => raw.chunk_tokens = 0,
            Some(rule) => {
                raw.chunk_tokens = rule.chunk_tokens;
                raw.low_bits = rule.low_bits;
                raw.middle_bits = rule.middle_bits;
                raw.high_bits = rule.high_bits;
                raw.alpha = rule.alpha;
                raw.beta = rule.beta;
                raw.reorder = rule.reorder.into();
                raw.hold = rule.hold.into();
            }
        }
        unsafe { check(sys::lk_plan_set_chunks(self.raw, &raw))? };
        Ok(self)
    }

    /// The plan's chunks; None = no chunks.
    pub fn chunks(&self) -> Result<Option<ChunkRule>> {
        let mut raw = initial(sys::lk_chunk_rule_init)?;
        unsafe { check(sys::lk_plan_get_chunks(self.raw, &mut raw))? };
        Ok((raw.chunk_tokens != 0).then(|| ChunkRule {
            chunk_tokens: raw.chunk_tokens,
            low_bits: raw.low_bits,
            middle_bits: raw.middle_bits,
            high_bits: raw.high_bits,
            alpha: raw.alpha,
            beta: raw.beta,
            reorder: raw.reorder != 0,
            hold: raw.hold != 0,
        }))
    }

    pub fn set_metadata(&mut self, layer: Which, metadata: Metadata) -> Result<&mut Self> {
        let raw = match metadata {
            Metadata::F16 => sys::LK_METADATA_F16,
            Metadata::F8 => sys::LK_METADATA_F8,
        };
        unsafe { check(sys::lk_plan_set_metadata(self.raw, layer.raw(), raw))? };
        Ok(self)
    }

    /// Tokens of a page: 32, 64 or 128.
    pub fn set_pages(&mut self, page_tokens: u32) -> Result<&mut Self> {
        unsafe { check(sys::lk_plan_set_pages(self.raw, page_tokens))? };
        Ok(self)
    }

    /// The first and at least the last tokens of a sequence that stay at 16 bits.
    pub fn set_recent(&mut self, sink_tokens: u32, recent_tokens: u32) -> Result<&mut Self> {
        unsafe { check(sys::lk_plan_set_recent(self.raw, sink_tokens, recent_tokens))? };
        Ok(self)
    }

    /// The ladder of a layer, widest rung first, and the rung at which it packs new pages.
    pub fn set_ladder(&mut self, layer: Which, rungs: &[u8], rung: u32) -> Result<&mut Self> {
        let n_rungs = u32::try_from(rungs.len()).unwrap_or(u32::MAX);
        unsafe {
            check(sys::lk_plan_set_ladder(self.raw, layer.raw(), rungs.as_ptr(), n_rungs, rung))?
        };
        Ok(self)
    }

    /// Width in bits of one channel in a packed page at a rung of the layer's ladder (0 = the
    /// layer's own) and of a chunk class, and its width where the page boosts it.
    pub fn width(
        &self,
        layer: u32,
        kv_head: u32,
        is_value: bool,
        channel: u32,
        rung: u32,
        class: Option<ChunkClass>,
    ) -> Result<(u32, u32)> {
        let (mut bits, mut boosted) = (0, 0);
        unsafe {
            check(sys::lk_plan_width(
                self.raw,
                layer,
                kv_head,
                is_value.into(),
                channel,
                rung,
                ChunkClass::raw(class),
                &mut bits,
                &mut boosted,
            ))?
        };
        Ok((bits, boosted))
    }

    /// Check that the plan is complete, and made for this geometry.
    pub fn validate(&self, geometry: Option<&Geometry>) -> Result<()> {
        match geometry {
            None => unsafe { check(sys::lk_plan_validate(self.raw, ptr::null())) },
            Some(geometry) => {
                geometry.with_raw(|raw| unsafe { check(sys::lk_plan_validate(self.raw, raw)) })
            }
        }
    }

    /// Bytes for `n_sequences` sequences of `n_tokens` tokens each, filled together in steps of
    /// `step_tokens`.
    pub fn bytes(&self, n_tokens: u64, n_sequences: u32, step_tokens: u32) -> Result<PlanSize> {
        let mut raw = initial(sys::lk_plan_size_init)?;
        unsafe {
            check(sys::lk_plan_bytes(self.raw, n_tokens, n_sequences, step_tokens, &mut raw))?
        };
        Ok(PlanSize::of(&raw))
    }

    /// The same after the chunks of all contexts got their first classes; see
    /// `lk_plan_chunk_bytes`.
    pub fn chunk_bytes(
        &self,
        n_tokens: u64,
        n_sequences: u32,
        step_tokens: u32,
        mix: ChunkMix,
    ) -> Result<PlanSize> {
        let mut raw_mix = initial(sys::lk_chunk_mix_init)?;
        raw_mix.n_low = mix.n_low;
        raw_mix.n_middle = mix.n_middle;
        raw_mix.n_high = mix.n_high;
        let mut raw = initial(sys::lk_plan_size_init)?;
        unsafe {
            check(sys::lk_plan_chunk_bytes(
                self.raw,
                n_tokens,
                n_sequences,
                step_tokens,
                &raw_mix,
                &mut raw,
            ))?
        };
        Ok(PlanSize::of(&raw))
    }

    /// The handle of the C interface. The plan keeps it.
    pub fn as_raw(&self) -> *mut sys::lk_plan {
        self.raw
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle.
        unsafe { sys::lk_plan_destroy(&mut self.raw) };
    }
}
