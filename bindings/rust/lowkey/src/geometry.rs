// SPDX-License-Identifier: Apache-2.0
use crate::error::{initial, Error, Result};
use lowkey_sys as sys;

/// One attention layer of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// A multiple of `n_kv_heads`, up to 1024 times as many.
    pub n_query_heads: u32,
    pub n_kv_heads: u32,
    /// Channels of queries and keys: a multiple of 16 from 32 to 512, to 576 in a latent layer.
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
    /// The earlier layer whose keys and values this one reads: it has no append, no bytes and the
    /// rules of that layer. `None`: its own.
    pub kv_layer: Option<u32>,
    /// Channels of values and outputs; 0 = `head_dim`.
    pub value_dim: u32,
    /// The values are the first `value_dim` channels of the keys: the layer has keys alone
    /// ([`Step::append_latent`](crate::Step::append_latent)) and no rule for values.
    pub is_latent: bool,
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
            kv_layer: None,
            value_dim: 0,
            is_latent: false,
        }
    }

    pub(crate) fn output_dim(&self) -> u32 {
        if self.value_dim == 0 {
            self.head_dim
        } else {
            self.value_dim
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
            raw.kv_layer = layer.kv_layer.unwrap_or(sys::LK_OWN_KV);
            raw.value_dim = layer.value_dim;
            raw.flags = if layer.is_latent { sys::LK_LAYER_LATENT } else { 0 };
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
