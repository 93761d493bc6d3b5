// SPDX-License-Identifier: Apache-2.0
use crate::context::Context;
use crate::error::{check, Error, Result};
use crate::step::Queue;
use crate::tensor::{check_shape, Shape, Tensor, TensorMut};
use lowkey_sys as sys;
use std::ptr;

/// Join outputs of attention of the same queries over sets of keys that share no key; see
/// `lk_merge`. Each split is an output `[n_tokens][n_heads][head_dim]` and its LSEs, f32
/// `[n_tokens][n_heads][1]`.
pub fn merge(
    context: &Context,
    queue: Option<&Queue>,
    splits: &[(Tensor<'_>, Tensor<'_>)],
    out: TensorMut<'_>,
    lse: Option<TensorMut<'_>>,
) -> Result<()> {
    let shape = out.shape;
    let flat = Shape { head_dim: 1, ..shape };
    for (output, lse) in splits {
        check_shape("an output", output.shape, shape)?;
        check_shape("an LSE", lse.shape, flat)?;
    }
    if let Some(lse) = &lse {
        check_shape("lse", lse.shape, flat)?;
    }
    let small =
        |n: usize| u32::try_from(n).map_err(|_| Error::argument("a dimension is beyond 32 bits"));
    let outs: Vec<_> = splits.iter().map(|(output, _)| &output.raw as *const _).collect();
    let lses: Vec<_> = splits.iter().map(|(_, lse)| &lse.raw as *const _).collect();
    // SAFETY: the tensors have the checked shapes and are alive for the call.
    unsafe {
        check(sys::lk_merge(
            context.as_raw(),
            queue.map_or(ptr::null(), Queue::as_raw),
            small(shape.n_tokens)?,
            small(shape.n_heads)?,
            small(shape.head_dim)?,
            small(splits.len())?,
            outs.as_ptr(),
            lses.as_ptr(),
            &out.raw,
            lse.as_ref().map_or(ptr::null(), |lse| &lse.raw),
        ))
    }
}
