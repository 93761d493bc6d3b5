// SPDX-License-Identifier: Apache-2.0

package lowkey

/*
#include <lowkey/lowkey.h>
#include <stdlib.h>
*/
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

// DType is the type of a tensor's elements.
type DType uint32

// Element types.
const (
	F16  DType = C.LK_F16
	BF16 DType = C.LK_BF16
	F32  DType = C.LK_F32
)

// MemoryKind is where a tensor's bytes are.
type MemoryKind uint32

// Kinds of memory.
const (
	Host         MemoryKind = C.LK_MEMORY_HOST
	CUDAMemory   MemoryKind = C.LK_MEMORY_CUDA
	VulkanBuffer MemoryKind = C.LK_MEMORY_VULKAN
)

// Float16 holds the bits of an IEEE binary16.
type Float16 uint16

// BFloat16 holds the upper half of the bits of an IEEE binary32.
type BFloat16 uint16

// Element is the type of the elements of a tensor.
type Element interface {
	float32 | Float16 | BFloat16
}

func dtypeOf[E Element]() DType {
	switch any(*new(E)).(type) {
	case Float16:
		return F16
	case BFloat16:
		return BF16
	}
	return F32
}

// firstOf is a pointer to a list's elements for one call of C, nil for an empty list. T is E's name in C.
func firstOf[T, E any](list []E) *T {
	if len(list) == 0 {
		return nil
	}
	return (*T)(unsafe.Pointer(&list[0]))
}

// Tensor is [tokens][heads][headDim], the sequences of a batch one after the other.
type Tensor struct {
	data                    unsafe.Pointer
	dtype                   DType
	memory                  MemoryKind
	tokens, heads, headDim  int
	tokenStride, headStride int64
	buffer, offset          uint64
	isGo                    bool // a slice, which C may use only during a call
	keep                    any
}

// Of makes a tensor of a slice, which must not be changed while a call uses it.
func Of[E Element](data []E, heads, headDim int) (Tensor, error) {
	width := heads * headDim
	if heads <= 0 || headDim <= 0 || len(data) == 0 || len(data)%width != 0 {
		return Tensor{}, refuse(fmt.Sprintf("%d elements are no whole tokens of %d heads of %d channels",
			len(data), heads, headDim))
	}
	return Tensor{
		data: unsafe.Pointer(&data[0]), dtype: dtypeOf[E](), memory: Host,
		tokens: len(data) / width, heads: heads, headDim: headDim,
		tokenStride: int64(width), headStride: int64(headDim), isGo: true, keep: data,
	}, nil
}

// Buffer is memory outside of Go's heap, which lowkey may keep between Append and Attend.
type Buffer[E Element] struct {
	block *block
	n     int
}

type block struct{ ptr unsafe.Pointer }

func (b *block) free() {
	C.free(b.ptr)
	b.ptr = nil
}

// NewBuffer allocates n elements, all zero. Its memory is freed when nothing refers to it.
func NewBuffer[E Element](n int) (*Buffer[E], error) {
	if n <= 0 {
		return nil, refuse(fmt.Sprintf("a buffer has %d elements", n))
	}
	ptr := C.calloc(C.size_t(n), C.size_t(unsafe.Sizeof(*new(E))))
	if ptr == nil {
		return nil, &Error{NoMemory, fmt.Sprintf("no memory for %d elements", n)}
	}
	b := &block{ptr}
	runtime.SetFinalizer(b, (*block).free)
	return &Buffer[E]{b, n}, nil
}

// Slice is the buffer's memory. It is valid while the buffer is referred to.
func (b *Buffer[E]) Slice() []E { return unsafe.Slice((*E)(b.block.ptr), b.n) }

// Tensor is all of the buffer.
func (b *Buffer[E]) Tensor(heads, headDim int) (Tensor, error) {
	t, err := Of(b.Slice(), heads, headDim)
	t.isGo, t.keep = false, b.block
	return t, err
}

// DeviceTensor is contiguous memory of the context's CUDA device that the caller keeps alive and
// untouched until the work that uses it is done.
func DeviceTensor(data uintptr, dtype DType, tokens, heads, headDim int) Tensor {
	return Tensor{
		data: *(*unsafe.Pointer)(unsafe.Pointer(&data)), dtype: dtype, memory: CUDAMemory, tokens: tokens, heads: heads,
		headDim: headDim, tokenStride: int64(heads * headDim), headStride: int64(headDim),
	}
}

// VulkanTensor is a contiguous range of a VkBuffer that was added to the context.
func VulkanTensor(buffer, offsetBytes uint64, dtype DType, tokens, heads, headDim int) Tensor {
	return Tensor{
		dtype: dtype, memory: VulkanBuffer, buffer: buffer, offset: offsetBytes, tokens: tokens,
		heads: heads, headDim: headDim, tokenStride: int64(heads * headDim), headStride: int64(headDim),
	}
}

func (t Tensor) check(name string, tokens, heads, headDim int) error {
	if t.tokens != tokens || t.heads != heads || t.headDim != headDim {
		return refuse(fmt.Sprintf("%s is [%d][%d][%d], the call needs [%d][%d][%d]", name,
			t.tokens, t.heads, t.headDim, tokens, heads, headDim))
	}
	return nil
}
