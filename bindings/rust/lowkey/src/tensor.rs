// SPDX-License-Identifier: Apache-2.0
use crate::error::{initial, Error, Result};
use lowkey_sys as sys;
use std::marker::PhantomData;
use std::os::raw::c_void;

mod sealed {
    pub trait Sealed {}
}

/// Element types of tensors in host memory.
pub trait Element: Copy + sealed::Sealed {
    #[doc(hidden)]
    const DTYPE: sys::lk_dtype;
}

/// Bits of an IEEE binary16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F16(pub u16);
/// The upper half of the bits of an IEEE binary32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Bf16(pub u16);

macro_rules! elements {
    ($($type:ty = $dtype:ident),*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: sys::lk_dtype = sys::$dtype;
        }
    )*};
}
elements!(f32 = LK_F32, F16 = LK_F16, Bf16 = LK_BF16);

/// `[n_tokens][n_heads][head_dim]`, the sequences of a batch one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub n_tokens: usize,
    pub n_heads: usize,
    pub head_dim: usize,
}

impl Shape {
    fn of(len: usize, n_heads: usize, head_dim: usize) -> Result<Self> {
        let per_token = n_heads.checked_mul(head_dim).filter(|&n| n > 0);
        match per_token {
            Some(n) if len % n == 0 => Ok(Shape { n_tokens: len / n, n_heads, head_dim }),
            _ => Err(Error::argument(format!(
                "{} elements are no whole tokens of {} heads of {} channels",
                len, n_heads, head_dim
            ))),
        }
    }

    /// Elements from the first to the last, inclusive.
    fn extent(&self, token_stride: usize, head_stride: usize) -> Option<usize> {
        if self.n_tokens == 0 || self.n_heads == 0 {
            return Some(0);
        }
        (self.n_tokens - 1)
            .checked_mul(token_stride)?
            .checked_add((self.n_heads - 1).checked_mul(head_stride)?)?
            .checked_add(self.head_dim)
    }
}

fn raw_tensor(
    dtype: sys::lk_dtype,
    memory: sys::lk_memory_kind,
    token_stride: usize,
    head_stride: usize,
) -> Result<sys::lk_tensor> {
    let stride =
        |n: usize| i64::try_from(n).map_err(|_| Error::argument("a stride is beyond 63 bits"));
    let mut raw = initial(sys::lk_tensor_init)?;
    raw.dtype = dtype;
    raw.memory = memory;
    raw.token_stride = stride(token_stride)?;
    raw.head_stride = stride(head_stride)?;
    Ok(raw)
}

fn check_extent(shape: Shape, token_stride: usize, head_stride: usize, len: usize) -> Result<()> {
    match shape.extent(token_stride, head_stride) {
        Some(needed) if needed <= len => Ok(()),
        _ => Err(Error::argument(format!(
            "{} elements do not hold {} tokens of {} heads of {} channels at strides {} and {}",
            len, shape.n_tokens, shape.n_heads, shape.head_dim, token_stride, head_stride
        ))),
    }
}

macro_rules! device_tensors {
    ($name:ident) => {
        impl $name<'static> {
            /// Contiguous memory of the context's CUDA device.
            ///
            /// # Safety
            /// `data` holds `[n_tokens][n_heads][head_dim]` elements of E there, and keeps them
            /// untouched by others until the work that uses them is done.
            pub unsafe fn cuda<E: Element>(
                data: *mut c_void,
                n_tokens: usize,
                n_heads: usize,
                head_dim: usize,
            ) -> Result<Self> {
                let mut raw =
                    raw_tensor(E::DTYPE, sys::LK_MEMORY_CUDA, n_heads * head_dim, head_dim)?;
                raw.data = data;
                let shape = Shape { n_tokens, n_heads, head_dim };
                Ok($name { raw, shape, _data: PhantomData })
            }

            /// A contiguous range of a `VkBuffer` that was added to the context.
            ///
            /// # Safety
            /// As for [`cuda`](Self::cuda), from `offset_bytes` on.
            pub unsafe fn vulkan<E: Element>(
                buffer: u64,
                offset_bytes: u64,
                n_tokens: usize,
                n_heads: usize,
                head_dim: usize,
            ) -> Result<Self> {
                let mut raw =
                    raw_tensor(E::DTYPE, sys::LK_MEMORY_VULKAN, n_heads * head_dim, head_dim)?;
                raw.buffer = buffer;
                raw.offset_bytes = offset_bytes;
                let shape = Shape { n_tokens, n_heads, head_dim };
                Ok($name { raw, shape, _data: PhantomData })
            }
        }
    };
}

/// Queries, keys or values that lowkey reads.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    pub(crate) raw: sys::lk_tensor,
    pub(crate) shape: Shape,
    _data: PhantomData<&'a [u8]>,
}

impl<'a> Tensor<'a> {
    /// `data` is `[n_tokens][n_heads][head_dim]`.
    pub fn new<E: Element>(data: &'a [E], n_heads: usize, head_dim: usize) -> Result<Self> {
        let shape = Shape::of(data.len(), n_heads, head_dim)?;
        Self::strided(data, shape.n_tokens, n_heads, head_dim, n_heads * head_dim, head_dim)
    }

    /// The same with strides in elements, for example of a fused QKV tensor.
    pub fn strided<E: Element>(
        data: &'a [E],
        n_tokens: usize,
        n_heads: usize,
        head_dim: usize,
        token_stride: usize,
        head_stride: usize,
    ) -> Result<Self> {
        let shape = Shape { n_tokens, n_heads, head_dim };
        check_extent(shape, token_stride, head_stride, data.len())?;
        let mut raw = raw_tensor(E::DTYPE, sys::LK_MEMORY_HOST, token_stride, head_stride)?;
        raw.data = data.as_ptr() as *mut c_void;
        Ok(Tensor { raw, shape, _data: PhantomData })
    }
}
device_tensors!(Tensor);

/// Outputs that lowkey writes.
pub struct TensorMut<'a> {
    pub(crate) raw: sys::lk_tensor,
    pub(crate) shape: Shape,
    _data: PhantomData<&'a mut [u8]>,
}

impl<'a> TensorMut<'a> {
    /// `data` is `[n_tokens][n_heads][head_dim]`; of LSEs head_dim is 1 and elements are f32.
    pub fn new<E: Element>(data: &'a mut [E], n_heads: usize, head_dim: usize) -> Result<Self> {
        let shape = Shape::of(data.len(), n_heads, head_dim)?;
        let mut raw = raw_tensor(E::DTYPE, sys::LK_MEMORY_HOST, n_heads * head_dim, head_dim)?;
        raw.data = data.as_mut_ptr() as *mut c_void;
        Ok(TensorMut { raw, shape, _data: PhantomData })
    }
}
device_tensors!(TensorMut);

/// Check that a tensor has the shape that a call needs.
pub(crate) fn check_shape(name: &str, has: Shape, needs: Shape) -> Result<()> {
    if has == needs {
        return Ok(());
    }
    Err(Error::argument(format!(
        "{} is [{}][{}][{}], the call needs [{}][{}][{}]",
        name,
        has.n_tokens,
        has.n_heads,
        has.head_dim,
        needs.n_tokens,
        needs.n_heads,
        needs.head_dim
    )))
}
