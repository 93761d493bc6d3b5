// SPDX-License-Identifier: Apache-2.0

package lowkey

/*
#include "tensor.h"

static lk_status lkgo_begin(lk_cache *cache, lkgo_queue queue, uint32_t n, const lk_sequence *ids,
                            const uint32_t *n_tokens, const int32_t *parent) {
    lk_queue made;
    return lk_step_begin(cache, lkgo_queue_of(queue, &made), n, ids, n_tokens, parent);
}

static lk_status lkgo_begin_spans(lk_cache *cache, lkgo_queue queue, uint32_t n, const lk_sequence *ids,
                                  const uint32_t *n_tokens, const uint32_t *spans, uint32_t n_spans,
                                  uint32_t flags) {
    lk_queue made;
    return lk_step_begin_spans(cache, lkgo_queue_of(queue, &made), n, ids, n_tokens, spans, n_spans, flags);
}

enum { LKGO_K, LKGO_V, LKGO_Q, LKGO_OUT, LKGO_LSE, LKGO_TENSORS };

static lk_status lkgo_append(lk_cache *cache, uint32_t layer, const lkgo_view *views, void *k, void *v) {
    lk_tensor keys, values;
    lkgo_tensor(&keys, &views[LKGO_K], k);
    lkgo_tensor(&values, &views[LKGO_V], v);
    return lk_append(cache, layer, &keys, views[LKGO_V].dtype ? &values : NULL);
}

static lk_status lkgo_attend(lk_cache *cache, uint32_t layer, const lkgo_view *views, void *q,
                             void *out, void *lse) {
    lk_tensor queries, outputs, sums;
    lkgo_tensor(&queries, &views[LKGO_Q], q);
    lkgo_tensor(&outputs, &views[LKGO_OUT], out);
    lkgo_tensor(&sums, &views[LKGO_LSE], lse);
    return lk_attend(cache, layer, &queries, &outputs, views[LKGO_LSE].dtype ? &sums : NULL);
}

static lk_status lkgo_layer(lk_cache *cache, uint32_t layer, const lkgo_view *views, void *k, void *v,
                            void *q, void *out, void *lse) {
    const lk_status status = lkgo_append(cache, layer, views, k, v);
    return status ? status : lkgo_attend(cache, layer, views, q, out, lse);
}

static lk_status lkgo_merge(const lk_context *context, lkgo_queue queue, uint32_t n_tokens,
                            uint32_t n_heads, uint32_t head_dim, uint32_t n_splits,
                            const lkgo_view *views, void *const *data, const lkgo_view *results,
                            void *out, void *lse) {
    lk_tensor tensors[2 * LK_MERGE_SPLITS], output, sums;
    const lk_tensor *outs[LK_MERGE_SPLITS], *lses[LK_MERGE_SPLITS];
    lk_queue made;
    for (uint32_t i = 0; i < n_splits && i < LK_MERGE_SPLITS; ++i) {
        lkgo_tensor(&tensors[2 * i], &views[2 * i], data[2 * i]);
        lkgo_tensor(&tensors[2 * i + 1], &views[2 * i + 1], data[2 * i + 1]);
        outs[i] = &tensors[2 * i];
        lses[i] = &tensors[2 * i + 1];
    }
    lkgo_tensor(&output, &results[0], out);
    lkgo_tensor(&sums, &results[1], lse);
    return lk_merge(context, lkgo_queue_of(queue, &made), n_tokens, n_heads, head_dim, n_splits, outs, lses,
                    &output, results[1].dtype ? &sums : NULL);
}
*/
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// NewTokens is a sequence of a step and the number of its new tokens.
type NewTokens struct {
	Sequence *Sequence
	Tokens   uint32
}

// Queue orders a step's work on a device. The zero value is no queue, for the CPU and Vulkan.
type Queue struct {
	Kind   QueueKind
	Handle uintptr // a cudaStream_t, or a VkCommandBuffer
}

// QueueKind is the kind of a queue's handle.
type QueueKind uint32

// Kinds of queues.
const (
	CUDAStream   QueueKind = C.LK_QUEUE_CUDA_STREAM
	VulkanSubmit QueueKind = C.LK_QUEUE_VULKAN_SUBMIT
	VulkanRecord QueueKind = C.LK_QUEUE_VULKAN_RECORD
)

func (q Queue) raw() C.lkgo_queue {
	return C.lkgo_queue{kind: C.uint32_t(q.Kind), handle: C.uintptr_t(q.Handle)}
}

// StepOptions are the options of a step.
type StepOptions struct {
	Queue Queue
	// Parents is a draft tree: for each new token the index of its parent among its sequence's new
	// tokens, or -1 for the last committed one.
	Parents []int32
	// Spans are new tokens that see each other both ways, without a draft tree: the index of the
	// sequence in the step, the first token and the end; see lk_step_begin_spans.
	Spans [][3]uint32
	// SpansInWindows: only layers with a sliding window have the spans.
	SpansInWindows bool
}

// Step is an open step of a cache. It ends with Commit or Discard; after either, Discard does
// nothing, so that it may be deferred.
type Step struct {
	mu        sync.Mutex // guards isOpen and kept
	cache     *Cache
	sequences int
	tokens    int
	isOpen    bool
	kept      []any // memory that C may read until the layer is attended
}

// Begin opens a step. A cache has one open step at a time.
func (c *Cache) Begin(options StepOptions, sequences ...NewTokens) (*Step, error) {
	ids := make([]C.lk_sequence, len(sequences)+1)
	counts := make([]C.uint32_t, len(sequences)+1)
	tokens := 0
	for i, added := range sequences {
		if added.Sequence.cache != c {
			return nil, refuse(fmt.Sprintf("sequence %d belongs to another cache", added.Sequence.ID()))
		}
		ids[i], counts[i] = added.Sequence.id, C.uint32_t(added.Tokens)
		tokens += int(added.Tokens)
	}
	if options.Parents != nil && len(options.Parents) != tokens {
		return nil, refuse(fmt.Sprintf("%d parents for %d new tokens", len(options.Parents), tokens))
	}
	if options.Parents != nil && len(options.Spans) > 0 {
		return nil, refuse("a step has a draft tree or spans, not both")
	}
	err := c.alone(func(ptr *C.lk_cache) C.lk_status {
		if len(options.Spans) > 0 {
			flags := C.uint32_t(0)
			if options.SpansInWindows {
				flags = C.LK_SPANS_WINDOWED
			}
			return C.lkgo_begin_spans(ptr, options.Queue.raw(), C.uint32_t(len(sequences)), &ids[0], &counts[0],
				firstOf[C.uint32_t](options.Spans), C.uint32_t(len(options.Spans)), flags)
		}
		return C.lkgo_begin(ptr, options.Queue.raw(), C.uint32_t(len(sequences)), &ids[0], &counts[0],
			firstOf[C.int32_t](options.Parents))
	})
	if err != nil {
		return nil, err
	}
	return &Step{cache: c, sequences: len(sequences), tokens: tokens, isOpen: true}, nil
}

// Tokens is the number of new tokens over all sequences: the first dimension of the tensors.
func (s *Step) Tokens() int { return s.tokens }

func (t Tensor) view() C.lkgo_view {
	return C.lkgo_view{
		dtype: C.uint32_t(t.dtype), memory: C.uint32_t(t.memory),
		token_stride: C.int64_t(t.tokenStride), head_stride: C.int64_t(t.headStride),
		buffer: C.uint64_t(t.buffer), offset_bytes: C.uint64_t(t.offset),
	}
}

// open locks the step for a call on a layer of the model.
func (s *Step) open(layer int) (Layer, error) {
	if !s.isOpen {
		return Layer{}, &Error{State, "the step has ended"}
	}
	if layer < 0 || layer >= len(s.cache.layers) {
		return Layer{}, refuse(fmt.Sprintf("layer is %d, the model has %d", layer, len(s.cache.layers)))
	}
	return s.cache.layers[layer], nil
}

func (s *Step) checkKeys(shape Layer, k, v Tensor) error {
	if err := k.check("k", s.tokens, int(shape.KVHeads), int(shape.HeadDim)); err != nil {
		return err
	}
	if shape.Latent && v.dtype == 0 {
		return nil
	}
	return v.check("v", s.tokens, int(shape.KVHeads), shape.outputDim())
}

func (s *Step) checkQueries(shape Layer, q, out, lse Tensor) error {
	heads, dim := int(shape.QueryHeads), int(shape.HeadDim)
	if err := q.check("q", s.tokens, heads, dim); err != nil {
		return err
	}
	if err := out.check("out", s.tokens, heads, shape.outputDim()); err != nil {
		return err
	}
	if lse.dtype == 0 {
		return nil
	}
	return lse.check("lse", s.tokens, heads, 1)
}

// Layer gives a layer its new keys (after RoPE), [tokens][KVHeads][HeadDim], and values,
// [tokens][KVHeads][ValueDim], and attends its queries: q [tokens][QueryHeads][HeadDim] and out
// [tokens][QueryHeads][ValueDim]; lse is F32 [tokens][QueryHeads][1], or the zero Tensor. v of a latent
// layer is the zero Tensor. All may be slices.
func (s *Step) Layer(layer int, k, v, q, out, lse Tensor) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	shape, err := s.open(layer)
	if err != nil {
		return err
	}
	if err := s.checkKeys(shape, k, v); err != nil {
		return err
	}
	if err := s.checkQueries(shape, q, out, lse); err != nil {
		return err
	}
	views := [C.LKGO_TENSORS]C.lkgo_view{k.view(), v.view(), q.view(), out.view(), lse.view()}
	err = s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lkgo_layer(ptr, C.uint32_t(layer), &views[0], k.data, v.data, q.data, out.data, lse.data)
	})
	runtime.KeepAlive([]any{k.keep, v.keep, q.keep, out.keep, lse.keep})
	return err
}

// Append gives a layer its new keys and values without its queries. They are in a Buffer or on the
// device, since lowkey may read them until Attend.
func (s *Step) Append(layer int, k, v Tensor) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	shape, err := s.open(layer)
	if err != nil {
		return err
	}
	if k.isGo || v.isGo {
		return refuse("k and v of Append are slices of Go, which C may not keep; use a Buffer, or Layer")
	}
	if err := s.checkKeys(shape, k, v); err != nil {
		return err
	}
	views := [C.LKGO_TENSORS]C.lkgo_view{k.view(), v.view()}
	s.kept = []any{k.keep, v.keep}
	return s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lkgo_append(ptr, C.uint32_t(layer), &views[0], k.data, v.data)
	})
}

// Attend attends the queries of the layer that was appended last, or of one that reads the keys and
// values of an appended layer (Layer.KVLayer).
func (s *Step) Attend(layer int, q, out, lse Tensor) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	shape, err := s.open(layer)
	if err != nil {
		return err
	}
	if err := s.checkQueries(shape, q, out, lse); err != nil {
		return err
	}
	views := [C.LKGO_TENSORS]C.lkgo_view{{}, {}, q.view(), out.view(), lse.view()}
	err = s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lkgo_attend(ptr, C.uint32_t(layer), &views[0], q.data, out.data, lse.data)
	})
	runtime.KeepAlive([]any{q.keep, out.keep, lse.keep})
	runtime.KeepAlive(s.kept)
	return err
}

// Replay declares that captured graphs run Append and Attend of this step, of all layers or of
// some; see lk_step_replay.
func (s *Step) Replay() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.open(0); err != nil {
		return err
	}
	return s.cache.alone(func(ptr *C.lk_cache) C.lk_status { return C.lk_step_replay(ptr) })
}

// Commit makes the new tokens part of their sequences: all without keep, else the first keep[i] of
// sequence i. When it fails the step stays open.
func (s *Step) Commit(keep ...uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.open(0); err != nil {
		return err
	}
	if len(keep) > 0 && len(keep) != s.sequences {
		return refuse(fmt.Sprintf("keep has %d counts for %d sequences", len(keep), s.sequences))
	}
	err := s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lk_step_commit(ptr, firstOf[C.uint32_t](keep))
	})
	if err == nil {
		s.isOpen = false
		s.kept = nil
	}
	return err
}

// CommitPaths keeps chosen tokens of draft trees: of sequence i the path paths[i] from the root, as
// indices of its new tokens. When it fails the step stays open.
func (s *Step) CommitPaths(paths ...[]uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.open(0); err != nil {
		return err
	}
	if len(paths) != s.sequences {
		return refuse(fmt.Sprintf("%d paths for %d sequences", len(paths), s.sequences))
	}
	counts := make([]C.uint32_t, len(paths))
	kept := make([]C.uint32_t, 0, s.tokens+1)
	for i, path := range paths {
		counts[i] = C.uint32_t(len(path))
		for _, token := range path {
			kept = append(kept, C.uint32_t(token))
		}
	}
	kept = append(kept, 0) // an address also for no tokens
	err := s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lk_step_commit_tokens(ptr, &counts[0], &kept[0])
	})
	if err == nil {
		s.isOpen = false
		s.kept = nil
	}
	return err
}

// Discard drops the new tokens of a step that is open still.
func (s *Step) Discard() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isOpen {
		return nil
	}
	s.isOpen = false
	s.kept = nil
	return s.cache.alone(func(ptr *C.lk_cache) C.lk_status { return C.lk_step_discard(ptr) })
}

// MergeSplit is an output [tokens][heads][headDim] with its LSEs, F32 [tokens][heads][1].
type MergeSplit struct{ Out, LSE Tensor }

// Merge joins outputs of attention of the same queries over sets of keys that share no key; see
// lk_merge. The tensors of the splits are in Buffers or on the device; lse may be the zero Tensor.
func (c *Context) Merge(queue Queue, splits []MergeSplit, out, lse Tensor) error {
	if len(splits) == 0 || len(splits) > C.LK_MERGE_SPLITS {
		return refuse(fmt.Sprintf("%d splits to merge, must be 1 to %d", len(splits), C.LK_MERGE_SPLITS))
	}
	views := make([]C.lkgo_view, 0, 2*len(splits))
	data := make([]unsafe.Pointer, 0, 2*len(splits))
	for _, split := range splits {
		if err := split.Out.check("an output", out.tokens, out.heads, out.headDim); err != nil {
			return err
		}
		if err := split.LSE.check("an LSE", out.tokens, out.heads, 1); err != nil {
			return err
		}
		if split.Out.isGo || split.LSE.isGo {
			return refuse("splits to merge are slices of Go; use a Buffer")
		}
		views = append(views, split.Out.view(), split.LSE.view())
		data = append(data, split.Out.data, split.LSE.data)
	}
	if lse.dtype != 0 {
		if err := lse.check("lse", out.tokens, out.heads, 1); err != nil {
			return err
		}
	}
	results := [2]C.lkgo_view{out.view(), lse.view()}
	err := c.with(func(ptr *C.lk_context) C.lk_status {
		return C.lkgo_merge(ptr, queue.raw(), C.uint32_t(out.tokens), C.uint32_t(out.heads),
			C.uint32_t(out.headDim), C.uint32_t(len(splits)), &views[0], &data[0], &results[0],
			out.data, lse.data)
	})
	runtime.KeepAlive(splits)
	runtime.KeepAlive([]any{out.keep, lse.keep})
	return err
}
