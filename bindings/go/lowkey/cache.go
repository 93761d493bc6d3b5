// SPDX-License-Identifier: Apache-2.0

package lowkey

/*
#include <lowkey/lowkey.h>

lk_pressure_action lowkeyGoPressure(void *user, lk_pressure *pressure);

static void lkgo_set_pressure(lk_cache_desc *desc, void *user) {
    desc->pressure = lowkeyGoPressure;
    desc->pressure_user = user;
}

// Go's memory may not hold a pointer to Go's memory, so C makes the description that does.
static lk_status lkgo_create(lk_context *context, const lk_geometry *geometry, const lk_plan *plan,
                             const lk_cache_desc *desc, const uint64_t *state_bytes, lk_cache **out) {
    lk_cache_desc own = *desc;
    own.state_bytes = state_bytes;
    return lk_cache_create(context, geometry, plan, &own, out);
}
static lk_status lkgo_state_bytes(const lk_cache_desc *desc, const uint64_t *state_bytes,
                                  uint32_t n_sequences, uint64_t *bytes) {
    lk_cache_desc own = *desc;
    own.state_bytes = state_bytes;
    return lk_state_bytes(&own, n_sequences, bytes);
}
*/
import "C"

import (
	"runtime"
	"sync"
)

// CacheOptions are the options of a cache; see lk_cache_desc. Zeros are the defaults.
type CacheOptions struct {
	BudgetBytes        uint64 // hard limit of all bytes that the cache holds
	MaxSequences       uint32
	MaxStepTokens      uint32
	SlabBytes          uint64
	MaxBudgetBytes     uint64 // highest budget that SetBudget accepts
	SequenceLimitBytes uint64 // most bytes of pages and tables that only one sequence uses
	Evict              bool   // on a shortfall, remove the sequence that a step named least recently
	KeepWindowed       bool   // keep pages that windows have left, so that sequences can be cut at any token
	States             StateOptions
	// Pressure is called inside Begin on each shortfall when the ladders have ended. It may not call the
	// cache; a panic in it counts as a refusal.
	Pressure func(Pressure) PressureAction
}

// StateOptions are the recurrent states of each sequence; see lowkey/state.h. The zero value is a cache
// without states.
type StateOptions struct {
	Bytes          []uint64 // of each state, multiples of 16
	Versions       uint32   // versions of earlier steps that a sequence keeps
	IntervalTokens uint32   // between kept versions; 0 is 64
}

func (s StateOptions) fill(desc *C.lk_cache_desc) {
	desc.n_states = C.uint32_t(len(s.Bytes))
	desc.state_versions = C.uint32_t(s.Versions)
	if s.IntervalTokens != 0 {
		desc.state_interval_tokens = C.uint32_t(s.IntervalTokens)
	}
}

// BudgetBytes computes the bytes that the states of sequences take in a cache's budget, at most.
func (s StateOptions) BudgetBytes(sequences uint32) (uint64, error) {
	var desc C.lk_cache_desc
	C.lk_cache_desc_init(&desc, C.sizeof_lk_cache_desc)
	s.fill(&desc)
	var bytes C.uint64_t
	err := call(func() C.lk_status {
		return C.lkgo_state_bytes(&desc, firstOf[C.uint64_t](s.Bytes), C.uint32_t(sequences), &bytes)
	})
	return uint64(bytes), err
}

// Stats are the contents of a cache in numbers; see lk_cache_stats.
type Stats struct {
	Sequences        uint32
	Tokens           uint64
	BudgetBytes      uint64
	ReservedBytes    uint64
	PayloadBytes     uint64
	MetadataBytes    uint64
	RecentBytes      uint64
	TableBytes       uint64
	WorkspaceBytes   uint64
	FreeBytes        uint64
	PagesPacked      uint64
	PagesDequantized uint64
	ValuesSaturated  uint64
	DeviceBytes      uint64
	SharedBytes      uint64 // bytes of pages with several sequences, counted once
	PagesCopied      uint64
	PagesShrunk      uint64
	Evicted          uint64 // sequences that were removed on a shortfall
	FragmentedBytes  uint64
	PlaneBytes       [6]uint64 // codes of all pages at 16, 8, 4, 3, 2 and 1 bits
	StateBytes       uint64    // recurrent states, those of steps included
}

// Cache is the key/value cache of one model: many sequences, one plan, one byte budget.
type Cache struct {
	work     sync.Mutex   // held by calls that need the cache alone
	alive    sync.RWMutex // only Close holds it to write
	ptr      *C.lk_cache
	context  *Context // must live as long
	layers   Geometry
	pressure handle // of the pressure function
}

// NewCache makes an empty cache.
func (c *Context) NewCache(geometry Geometry, plan *Plan, options CacheOptions) (*Cache, error) {
	raw, free, err := geometry.raw()
	if err != nil {
		return nil, err
	}
	defer free()
	var desc C.lk_cache_desc
	C.lk_cache_desc_init(&desc, C.sizeof_lk_cache_desc)
	desc.budget_bytes = C.uint64_t(options.BudgetBytes)
	desc.slab_bytes = C.uint64_t(options.SlabBytes)
	desc.max_budget_bytes = C.uint64_t(options.MaxBudgetBytes)
	desc.sequence_limit_bytes = C.uint64_t(options.SequenceLimitBytes)
	options.States.fill(&desc)
	if options.Evict {
		desc.flags |= C.LK_CACHE_EVICT
	}
	if options.KeepWindowed {
		desc.flags |= C.LK_CACHE_KEEP_WINDOWED
	}
	if options.MaxSequences != 0 {
		desc.max_sequences = C.uint32_t(options.MaxSequences)
	}
	if options.MaxStepTokens != 0 {
		desc.max_step_tokens = C.uint32_t(options.MaxStepTokens)
	}
	cache := &Cache{context: c, layers: append(Geometry(nil), geometry...)}
	plan.mu.Lock()
	defer plan.mu.Unlock()
	if plan.ptr == nil {
		return nil, ErrClosed
	}
	if options.Pressure != nil {
		if cache.pressure, err = newHandle(options.Pressure); err != nil {
			return nil, err
		}
		C.lkgo_set_pressure(&desc, cache.pressure.user)
	}
	err = c.with(func(context *C.lk_context) C.lk_status {
		return C.lkgo_create(context, raw, plan.ptr, &desc, firstOf[C.uint64_t](options.States.Bytes), &cache.ptr)
	})
	if err != nil {
		cache.pressure.drop()
		return nil, err
	}
	runtime.SetFinalizer(cache, (*Cache).Close)
	return cache, nil
}

// Close ends the cache with its sequences and an open step.
func (c *Cache) Close() {
	c.work.Lock()
	defer c.work.Unlock()
	c.alive.Lock()
	defer c.alive.Unlock()
	C.lk_cache_destroy(&c.ptr)
	c.pressure.drop()
	runtime.SetFinalizer(c, nil)
}

// shared runs a call that may run at the same time as any other.
func (c *Cache) shared(f func(ptr *C.lk_cache) C.lk_status) error {
	c.alive.RLock()
	defer c.alive.RUnlock()
	if c.ptr == nil {
		return ErrClosed
	}
	err := call(func() C.lk_status { return f(c.ptr) })
	runtime.KeepAlive(c)
	return err
}

// alone runs a call that needs the cache alone.
func (c *Cache) alone(f func(ptr *C.lk_cache) C.lk_status) error {
	c.work.Lock()
	defer c.work.Unlock()
	return c.shared(f)
}

// Stats reads the contents of the cache in numbers.
func (c *Cache) Stats() (Stats, error) {
	var raw C.lk_cache_stats
	C.lk_cache_stats_init(&raw, C.sizeof_lk_cache_stats)
	err := c.shared(func(ptr *C.lk_cache) C.lk_status { return C.lk_cache_get_stats(ptr, &raw) })
	if err != nil {
		return Stats{}, err
	}
	stats := Stats{
		Sequences: uint32(raw.n_sequences), Tokens: uint64(raw.n_tokens),
		BudgetBytes: uint64(raw.budget_bytes), ReservedBytes: uint64(raw.reserved_bytes),
		PayloadBytes: uint64(raw.payload_bytes), MetadataBytes: uint64(raw.metadata_bytes),
		RecentBytes: uint64(raw.recent_bytes), TableBytes: uint64(raw.table_bytes),
		WorkspaceBytes: uint64(raw.workspace_bytes), FreeBytes: uint64(raw.free_bytes),
		PagesPacked: uint64(raw.pages_packed), PagesDequantized: uint64(raw.pages_dequantized),
		ValuesSaturated: uint64(raw.values_saturated), DeviceBytes: uint64(raw.device_bytes),
		SharedBytes: uint64(raw.shared_bytes), PagesCopied: uint64(raw.pages_copied),
		PagesShrunk: uint64(raw.pages_shrunk), Evicted: uint64(raw.sequences_evicted),
		FragmentedBytes: uint64(raw.fragmented_bytes), StateBytes: uint64(raw.state_bytes),
	}
	for i, bytes := range raw.plane_bytes {
		stats.PlaneBytes[i] = uint64(bytes)
	}
	return stats, nil
}

// Poll checks the open step and committed ones for faults.
func (c *Cache) Poll() error {
	return c.shared(func(ptr *C.lk_cache) C.lk_status { return C.lk_cache_poll(ptr) })
}

// SetBudget changes the byte budget and shrinks pages to fit it; see lk_cache_set_budget.
func (c *Cache) SetBudget(bytes uint64) error {
	return c.alone(func(ptr *C.lk_cache) C.lk_status { return C.lk_cache_set_budget(ptr, C.uint64_t(bytes)) })
}

// Shrink shrinks a layer, or All, to a rung of its ladder; see lk_cache_shrink.
func (c *Cache) Shrink(layer, bits uint32) error {
	return c.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lk_cache_shrink(ptr, C.uint32_t(layer), C.uint32_t(bits))
	})
}

// Sequence is a sequence of a cache. It lives until Remove or the end of the cache.
type Sequence struct {
	cache *Cache
	id    C.lk_sequence
}

// AddSequence adds an empty sequence.
func (c *Cache) AddSequence() (*Sequence, error) {
	sequence := &Sequence{cache: c}
	err := c.alone(func(ptr *C.lk_cache) C.lk_status { return C.lk_sequence_add(ptr, &sequence.id) })
	if err != nil {
		return nil, err
	}
	return sequence, nil
}

// ID is the sequence's number in its cache.
func (s *Sequence) ID() uint64 { return uint64(s.id) }

// Len is the number of committed tokens.
func (s *Sequence) Len() (uint64, error) {
	var tokens C.uint64_t
	err := s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lk_sequence_length(ptr, s.id, &tokens)
	})
	return uint64(tokens), err
}

// Truncate keeps the first tokens; see lk_sequence_truncate.
func (s *Sequence) Truncate(tokens uint64) error {
	return s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lk_sequence_truncate(ptr, s.id, C.uint64_t(tokens))
	})
}

// FindState finds the tokens of the newest version of the states at or before a token.
func (s *Sequence) FindState(tokens uint64) (uint64, error) {
	var found C.uint64_t
	err := s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lk_sequence_find_state(ptr, s.id, C.uint64_t(tokens), &found)
	})
	return uint64(found), err
}

// Rollback truncates to the newest version at or before a token, and returns the new length.
func (s *Sequence) Rollback(tokens uint64) (uint64, error) {
	var kept C.uint64_t
	err := s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lk_sequence_rollback(ptr, s.id, C.uint64_t(tokens), &kept)
	})
	return uint64(kept), err
}

// AllTokens is every token of a sequence.
const AllTokens uint64 = C.LK_ALL_TOKENS

// Fork adds a sequence that begins with the first tokens of this one and shares its pages; see
// lk_sequence_fork.
func (s *Sequence) Fork(tokens uint64) (*Sequence, error) {
	child := &Sequence{cache: s.cache}
	err := s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lk_sequence_fork(ptr, s.id, C.uint64_t(tokens), &child.id)
	})
	if err != nil {
		return nil, err
	}
	return child, nil
}

// Remove frees the pages that no other sequence has.
func (s *Sequence) Remove() error {
	return s.cache.alone(func(ptr *C.lk_cache) C.lk_status { return C.lk_sequence_remove(ptr, s.id) })
}
