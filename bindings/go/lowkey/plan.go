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
	"sync"
	"unsafe"
)

// Layer is one attention layer of a model; see lk_layer.
type Layer struct {
	QueryHeads, KVHeads, HeadDim uint32
	WindowTokens                 uint32 // a query attends to this many last tokens; 0 = all
	WindowSinkTokens             uint32
	Scale                        float32 // of the logits; 0 = 1 / sqrt(HeadDim)
	SoftCap                      float32 // 0 = off
	SinkLogits                   []float32
	KVLayer                      *uint32 // earlier layer whose keys and values this one reads; nil = its own
	ValueDim                     uint32  // channels of values and outputs; 0 = HeadDim
	Latent                       bool    // values are the first ValueDim channels of the keys; see LK_LAYER_LATENT
}

// outputDim is the channels of the layer's values and outputs.
func (l *Layer) outputDim() int {
	if l.ValueDim != 0 {
		return int(l.ValueDim)
	}
	return int(l.HeadDim)
}

// Geometry is a model's attention layers.
type Geometry []Layer

// Uniform is a model of equal layers.
func Uniform(layers int, layer Layer) Geometry {
	geometry := make(Geometry, layers)
	for i := range geometry {
		geometry[i] = layer
	}
	return geometry
}

// raw is a copy in C memory, and the function that frees it.
func (g Geometry) raw() (*C.lk_geometry, func(), error) {
	var blocks []unsafe.Pointer
	free := func() {
		for _, block := range blocks {
			C.free(block)
		}
	}
	alloc := func(n, size int) unsafe.Pointer {
		block := C.calloc(C.size_t(n+1), C.size_t(size)) // never of no bytes
		if block != nil {
			blocks = append(blocks, block)
		}
		return block
	}
	geometry := (*C.lk_geometry)(alloc(1, C.sizeof_lk_geometry))
	list := alloc(len(g), C.sizeof_lk_layer)
	if geometry == nil || list == nil {
		free()
		return nil, nil, &Error{NoMemory, fmt.Sprintf("no memory for %d layers", len(g))}
	}
	for i, layer := range unsafe.Slice((*C.lk_layer)(list), len(g)) {
		from := g[i]
		C.lk_layer_init(&layer, C.sizeof_lk_layer)
		layer.n_query_heads = C.uint32_t(from.QueryHeads)
		layer.n_kv_heads = C.uint32_t(from.KVHeads)
		layer.head_dim = C.uint32_t(from.HeadDim)
		layer.window_tokens = C.uint32_t(from.WindowTokens)
		layer.window_sink_tokens = C.uint32_t(from.WindowSinkTokens)
		layer.scale = C.float(from.Scale)
		layer.soft_cap = C.float(from.SoftCap)
		layer.value_dim = C.uint32_t(from.ValueDim)
		if from.Latent {
			layer.flags = C.LK_LAYER_LATENT
		}
		if from.KVLayer != nil {
			layer.kv_layer = C.uint32_t(*from.KVLayer)
		}
		if from.SinkLogits != nil {
			if len(from.SinkLogits) != int(from.QueryHeads) {
				free()
				return nil, nil, refuse(fmt.Sprintf("layer %d has %d sink logits for %d query heads", i,
					len(from.SinkLogits), from.QueryHeads))
			}
			logits := alloc(len(from.SinkLogits), 4)
			if logits == nil {
				free()
				return nil, nil, &Error{NoMemory, "no memory for sink logits"}
			}
			copy(unsafe.Slice((*float32)(logits), len(from.SinkLogits)), from.SinkLogits)
			layer.sink_logits = (*C.float)(logits)
		}
		unsafe.Slice((*C.lk_layer)(list), len(g))[i] = layer
	}
	C.lk_geometry_init(geometry, C.sizeof_lk_geometry)
	geometry.n_layers = C.uint32_t(len(g))
	geometry.layers = (*C.lk_layer)(list)
	return geometry, free, nil
}

// All is every layer, or every KV head of a layer, in the setters of a plan.
const All uint32 = C.LK_ALL

// Axis is how groups run, which share one range and one minimum.
type Axis uint32

// Axes.
const (
	ByChannel Axis = C.LK_AXIS_CHANNEL // consecutive tokens of one channel
	ByToken   Axis = C.LK_AXIS_TOKEN   // consecutive channels of one token
)

// Ranking is how a page ranks the key channels that it boosts.
type Ranking uint32

// Rankings of channels.
const (
	RankingKey        Ranking = C.LK_RANKING_KEY
	RankingQueryRange Ranking = C.LK_RANKING_QUERY_RANGE
)

// Metadata is the number format of ranges and minima.
type Metadata uint32

// Formats of metadata.
const (
	MetadataF16 Metadata = C.LK_METADATA_F16
	MetadataF8  Metadata = C.LK_METADATA_F8
)

// OneBit is how the two values of 1-bit codes are made.
type OneBit uint32

// Rules of 1-bit codes.
const (
	OneBitDeviation OneBit = C.LK_ONE_BIT_DEVIATION // mean -+ mean absolute deviation of the group
	OneBitRange     OneBit = C.LK_ONE_BIT_RANGE     // its minimum and maximum
)

// KeyRule is the rule of the keys of a KV head; see lk_key_rule.
type KeyRule struct {
	Bits          uint32
	Axis          Axis // 0 = ByChannel
	Group         uint32
	BoostChannels uint32
	BoostBits     uint32
	BoostRanking  Ranking
	ChannelBits   []uint8
	OneBit        OneBit  // 0 = OneBitDeviation
	Clip          float32 // share of its range that a group packed at 2 bits keeps; 0 = the whole
}

// ValueRule is the rule of the values of a KV head; see lk_value_rule.
type ValueRule struct {
	Bits, Group uint32
	OneBit      OneBit  // 0 = OneBitDeviation
	Clip        float32 // as for keys
}

// PlanSize is the exact bytes of a plan; see lk_plan_size.
type PlanSize struct {
	Blocks        uint32
	BitsPerValue  float64
	BytesPerToken float64
	FP16Bytes     uint64
	PayloadBytes  uint64
	MetadataBytes uint64
	RecentBytes   uint64
	TableBytes    uint64
	CacheBytes    uint64
}

// Plan is a quantization plan for one geometry.
type Plan struct {
	mu  sync.Mutex
	ptr *C.lk_plan
}

func newPlan(ptr *C.lk_plan) *Plan {
	plan := &Plan{ptr: ptr}
	runtime.SetFinalizer(plan, (*Plan).Close)
	return plan
}

// PresetNames lists the presets.
func PresetNames() []string {
	var names []string
	for i := C.uint32_t(0); ; i++ {
		name := C.lk_plan_preset_name(i)
		if name == nil {
			return names
		}
		names = append(names, C.GoString(name))
	}
}

// NewPlan makes a preset plan.
func NewPlan(preset string, geometry Geometry) (*Plan, error) {
	raw, free, err := geometry.raw()
	if err != nil {
		return nil, err
	}
	defer free()
	name := C.CString(preset)
	defer C.free(unsafe.Pointer(name))
	var ptr *C.lk_plan
	if err := call(func() C.lk_status { return C.lk_plan_preset(name, raw, &ptr) }); err != nil {
		return nil, err
	}
	return newPlan(ptr), nil
}

// DefaultPlan makes the plan that, without statistics, answers best within so many bits of a packed value, ranges and
// minima included; 0: the narrowest plan with the answers of FP16 on all proving models, which NewPlan("default") makes
// too.
func DefaultPlan(geometry Geometry, bitsPerValue float64) (*Plan, error) {
	raw, free, err := geometry.raw()
	if err != nil {
		return nil, err
	}
	defer free()
	var ptr *C.lk_plan
	err = call(func() C.lk_status { return C.lk_plan_default(raw, C.double(bitsPerValue), &ptr) })
	if err != nil {
		return nil, err
	}
	return newPlan(ptr), nil
}

// PlanFromJSON reads a plan from untrusted text.
func PlanFromJSON(text []byte) (*Plan, error) {
	block := C.CBytes(text)
	defer C.free(block)
	var ptr *C.lk_plan
	err := call(func() C.lk_status {
		return C.lk_plan_from_json((*C.char)(block), C.size_t(len(text)), &ptr)
	})
	if err != nil {
		return nil, err
	}
	return newPlan(ptr), nil
}

// Close ends the plan. Caches have copies of their own.
func (p *Plan) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	C.lk_plan_destroy(&p.ptr)
	runtime.SetFinalizer(p, nil)
}

// with runs a call that has the plan alone.
func (p *Plan) with(f func(ptr *C.lk_plan) C.lk_status) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ptr == nil {
		return ErrClosed
	}
	err := call(func() C.lk_status { return f(p.ptr) })
	runtime.KeepAlive(p)
	return err
}

// JSON is the plan as text (docs/PLAN.md).
func (p *Plan) JSON() ([]byte, error) {
	var text []byte
	err := p.with(func(ptr *C.lk_plan) C.lk_status {
		var needed C.size_t
		if status := C.lk_plan_to_json(ptr, nil, 0, &needed); status != C.LK_OK {
			return status
		}
		buffer := make([]byte, int(needed))
		status := C.lk_plan_to_json(ptr, (*C.char)(unsafe.Pointer(&buffer[0])), needed, &needed)
		text = buffer[:len(buffer)-1] // without its zero
		return status
	})
	if err != nil {
		return nil, err
	}
	return text, nil
}

// Name is the plan's name.
func (p *Plan) Name() (string, error) {
	var name string
	err := p.with(func(ptr *C.lk_plan) C.lk_status {
		name = C.GoString(C.lk_plan_name(ptr))
		return C.LK_OK
	})
	return name, err
}

// SetName names the plan.
func (p *Plan) SetName(name string) error {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	return p.with(func(ptr *C.lk_plan) C.lk_status { return C.lk_plan_set_name(ptr, text) })
}

// SetKey sets the rule of keys; layer and kvHead may be All.
func (p *Plan) SetKey(layer, kvHead uint32, rule KeyRule) error {
	var raw C.lk_key_rule
	C.lk_key_rule_init(&raw, C.sizeof_lk_key_rule)
	raw.bits = C.uint32_t(rule.Bits)
	if rule.Axis != 0 {
		raw.axis = C.lk_axis(rule.Axis)
	}
	raw.group = C.uint32_t(rule.Group)
	if rule.OneBit != 0 {
		raw.one_bit = C.lk_one_bit(rule.OneBit)
	}
	if rule.Clip != 0 {
		raw.clip = C.float(rule.Clip)
	}
	raw.boost_channels = C.uint32_t(rule.BoostChannels)
	raw.boost_bits = C.uint32_t(rule.BoostBits)
	raw.boost_ranking = C.lk_ranking(rule.BoostRanking)
	if rule.ChannelBits != nil {
		// C reads head_dim bytes, at most 576; missing bytes are widths of 0, which it refuses.
		const most = 576
		block := C.calloc(C.size_t(most+len(rule.ChannelBits)), 1)
		if block == nil {
			return &Error{NoMemory, "no memory for channel bits"}
		}
		defer C.free(block)
		copy(unsafe.Slice((*uint8)(block), len(rule.ChannelBits)), rule.ChannelBits)
		raw.channel_bits = (*C.uint8_t)(block)
	}
	return p.with(func(ptr *C.lk_plan) C.lk_status {
		return C.lk_plan_set_key(ptr, C.uint32_t(layer), C.uint32_t(kvHead), &raw)
	})
}

// SetValue sets the rule of values; layer and kvHead may be All.
func (p *Plan) SetValue(layer, kvHead uint32, rule ValueRule) error {
	var raw C.lk_value_rule
	C.lk_value_rule_init(&raw, C.sizeof_lk_value_rule)
	raw.bits, raw.group = C.uint32_t(rule.Bits), C.uint32_t(rule.Group)
	if rule.OneBit != 0 {
		raw.one_bit = C.lk_one_bit(rule.OneBit)
	}
	if rule.Clip != 0 {
		raw.clip = C.float(rule.Clip)
	}
	return p.with(func(ptr *C.lk_plan) C.lk_status {
		return C.lk_plan_set_value(ptr, C.uint32_t(layer), C.uint32_t(kvHead), &raw)
	})
}

// ChunkRule has the classes of a context's chunks; see lk_chunk_rule. DefaultChunkRule is Cocktail
// as published.
type ChunkRule struct {
	ChunkTokens                   uint32 // 0 = the plan has no chunks
	LowBits, MiddleBits, HighBits uint32 // upper limits of the widths: 2, 4, 8 or 16, ascending
	Alpha, Beta                   float32
	Reorder                       bool // pages of one class are neighbours
	Hold                          bool // tokens after the context stay at 16 bits
}

func chunkRule(raw *C.lk_chunk_rule) ChunkRule {
	return ChunkRule{
		ChunkTokens: uint32(raw.chunk_tokens), LowBits: uint32(raw.low_bits), MiddleBits: uint32(raw.middle_bits),
		HighBits: uint32(raw.high_bits), Alpha: float32(raw.alpha), Beta: float32(raw.beta),
		Reorder: raw.reorder != 0, Hold: raw.hold != 0,
	}
}

// DefaultChunkRule is lk_chunk_rule_init.
func DefaultChunkRule() ChunkRule {
	var raw C.lk_chunk_rule
	C.lk_chunk_rule_init(&raw, C.sizeof_lk_chunk_rule)
	return chunkRule(&raw)
}

func flag(is bool) C.uint32_t {
	if is {
		return 1
	}
	return 0
}

// SetChunks sets the classes of a context's chunks; the zero ChunkRule is a plan without chunks.
func (p *Plan) SetChunks(rule ChunkRule) error {
	var raw C.lk_chunk_rule
	C.lk_chunk_rule_init(&raw, C.sizeof_lk_chunk_rule)
	raw.chunk_tokens, raw.low_bits = C.uint32_t(rule.ChunkTokens), C.uint32_t(rule.LowBits)
	raw.middle_bits, raw.high_bits = C.uint32_t(rule.MiddleBits), C.uint32_t(rule.HighBits)
	raw.alpha, raw.beta = C.float(rule.Alpha), C.float(rule.Beta)
	raw.reorder, raw.hold = flag(rule.Reorder), flag(rule.Hold)
	return p.with(func(ptr *C.lk_plan) C.lk_status { return C.lk_plan_set_chunks(ptr, &raw) })
}

// Chunks is the rule of SetChunks, or the zero ChunkRule.
func (p *Plan) Chunks() (ChunkRule, error) {
	var raw C.lk_chunk_rule
	C.lk_chunk_rule_init(&raw, C.sizeof_lk_chunk_rule)
	err := p.with(func(ptr *C.lk_plan) C.lk_status { return C.lk_plan_get_chunks(ptr, &raw) })
	if err != nil {
		return ChunkRule{}, err
	}
	return chunkRule(&raw), nil
}

// SetMetadata sets the number format of a layer's ranges and minima.
func (p *Plan) SetMetadata(layer uint32, metadata Metadata) error {
	return p.with(func(ptr *C.lk_plan) C.lk_status {
		return C.lk_plan_set_metadata(ptr, C.uint32_t(layer), C.lk_metadata(metadata))
	})
}

// SetPages sets the tokens of a page.
func (p *Plan) SetPages(pageTokens uint32) error {
	return p.with(func(ptr *C.lk_plan) C.lk_status {
		return C.lk_plan_set_pages(ptr, C.uint32_t(pageTokens))
	})
}

// SetRecent sets the first and at least the last tokens of a sequence that stay at 16 bits.
func (p *Plan) SetRecent(sinkTokens, recentTokens uint32) error {
	return p.with(func(ptr *C.lk_plan) C.lk_status {
		return C.lk_plan_set_recent(ptr, C.uint32_t(sinkTokens), C.uint32_t(recentTokens))
	})
}

// SetLadder sets the ladder of a layer, widest rung first, and the rung at which it packs new pages.
func (p *Plan) SetLadder(layer uint32, rungs []uint8, rung uint32) error {
	return p.with(func(ptr *C.lk_plan) C.lk_status {
		return C.lk_plan_set_ladder(ptr, C.uint32_t(layer), firstOf[C.uint8_t](rungs), C.uint32_t(len(rungs)),
			C.uint32_t(rung))
	})
}

// SetLayerBudget sets the bytes that the pages of a layer with a ladder may take in the whole cache; 0
// is no budget. See lk_plan_set_layer_budget.
func (p *Plan) SetLayerBudget(layer uint32, budgetBytes uint64) error {
	return p.with(func(ptr *C.lk_plan) C.lk_status {
		return C.lk_plan_set_layer_budget(ptr, C.uint32_t(layer), C.uint64_t(budgetBytes))
	})
}

// LayerBudget is the budget of a layer in bytes; 0 is none.
func (p *Plan) LayerBudget(layer uint32) (uint64, error) {
	var raw C.uint64_t
	err := p.with(func(ptr *C.lk_plan) C.lk_status {
		return C.lk_plan_get_layer_budget(ptr, C.uint32_t(layer), &raw)
	})
	return uint64(raw), err
}

// Rung is the width of the rung at which budgets of layers leave a layer with so many tokens; arguments
// as for Bytes.
func (p *Plan) Rung(layer uint32, tokens uint64, sequences, stepTokens uint32) (uint32, error) {
	var raw C.uint32_t
	err := p.with(func(ptr *C.lk_plan) C.lk_status {
		return C.lk_plan_rung(ptr, C.uint32_t(layer), C.uint64_t(tokens), C.uint32_t(sequences),
			C.uint32_t(stepTokens), &raw)
	})
	return uint32(raw), err
}

// Width is the width in bits of one channel in a packed page at a rung of the layer's ladder (0 = the
// layer's own) and of a chunk class, and its width where the page boosts it.
func (p *Plan) Width(layer, kvHead uint32, isValue bool, channel, rung uint32, class ChunkClass) (bits, boosted uint32,
	err error) {
	var raw, high C.uint32_t
	err = p.with(func(ptr *C.lk_plan) C.lk_status {
		return C.lk_plan_width(ptr, C.uint32_t(layer), C.uint32_t(kvHead), flag(isValue), C.uint32_t(channel),
			C.uint32_t(rung), C.lk_chunk_class(class), &raw, &high)
	})
	return uint32(raw), uint32(high), err
}

// Validate checks that the plan is complete, and made for the geometry when that is not nil.
func (p *Plan) Validate(geometry Geometry) error {
	if geometry == nil {
		return p.with(func(ptr *C.lk_plan) C.lk_status { return C.lk_plan_validate(ptr, nil) })
	}
	raw, free, err := geometry.raw()
	if err != nil {
		return err
	}
	defer free()
	return p.with(func(ptr *C.lk_plan) C.lk_status { return C.lk_plan_validate(ptr, raw) })
}

// Bytes computes the bytes of sequences of tokens each, filled together in steps of stepTokens.
func (p *Plan) Bytes(tokens uint64, sequences, stepTokens uint32) (PlanSize, error) {
	return p.size(func(ptr *C.lk_plan, raw *C.lk_plan_size) C.lk_status {
		return C.lk_plan_bytes(ptr, C.uint64_t(tokens), C.uint32_t(sequences), C.uint32_t(stepTokens), raw)
	})
}

// BytesWithWindowed is the same for a cache with CacheOptions.KeepWindowed.
func (p *Plan) BytesWithWindowed(tokens uint64, sequences, stepTokens uint32) (PlanSize, error) {
	return p.size(func(ptr *C.lk_plan, raw *C.lk_plan_size) C.lk_status {
		return C.lk_cache_bytes(ptr, C.LK_CACHE_KEEP_WINDOWED, C.uint64_t(tokens), C.uint32_t(sequences),
			C.uint32_t(stepTokens), raw)
	})
}

// ChunkMix is how many chunks of a context have each class.
type ChunkMix struct{ Low, Middle, High uint32 }

func (m ChunkMix) raw() C.lk_chunk_mix {
	var counts C.lk_chunk_mix
	C.lk_chunk_mix_init(&counts, C.sizeof_lk_chunk_mix)
	counts.n_low, counts.n_middle = C.uint32_t(m.Low), C.uint32_t(m.Middle)
	counts.n_high = C.uint32_t(m.High)
	return counts
}

// ChunkBytes is the same as Bytes after the chunks of all contexts got their first classes; see
// lk_plan_chunk_bytes.
func (p *Plan) ChunkBytes(tokens uint64, sequences, stepTokens uint32, mix ChunkMix) (PlanSize, error) {
	counts := mix.raw()
	return p.size(func(ptr *C.lk_plan, raw *C.lk_plan_size) C.lk_status {
		return C.lk_plan_chunk_bytes(ptr, C.uint64_t(tokens), C.uint32_t(sequences), C.uint32_t(stepTokens), &counts,
			raw)
	})
}

// ChunkPrefillBytes is the budget with which sequences reach the state of ChunkBytes if their classes are
// assigned before the prefill; see lk_plan_chunk_prefill_bytes.
func (p *Plan) ChunkPrefillBytes(tokens uint64, sequences, stepTokens uint32, mix ChunkMix) (uint64, error) {
	counts := mix.raw()
	var bytes C.uint64_t
	err := p.with(func(ptr *C.lk_plan) C.lk_status {
		return C.lk_plan_chunk_prefill_bytes(ptr, C.uint64_t(tokens), C.uint32_t(sequences), C.uint32_t(stepTokens),
			&counts, &bytes)
	})
	return uint64(bytes), err
}

// size runs a call that fills an lk_plan_size.
func (p *Plan) size(f func(ptr *C.lk_plan, raw *C.lk_plan_size) C.lk_status) (PlanSize, error) {
	var raw C.lk_plan_size
	C.lk_plan_size_init(&raw, C.sizeof_lk_plan_size)
	err := p.with(func(ptr *C.lk_plan) C.lk_status { return f(ptr, &raw) })
	if err != nil {
		return PlanSize{}, err
	}
	return PlanSize{
		Blocks: uint32(raw.n_blocks), BitsPerValue: float64(raw.bits_per_value),
		BytesPerToken: float64(raw.bytes_per_token), FP16Bytes: uint64(raw.fp16_bytes),
		PayloadBytes: uint64(raw.payload_bytes), MetadataBytes: uint64(raw.metadata_bytes),
		RecentBytes: uint64(raw.recent_bytes), TableBytes: uint64(raw.table_bytes),
		CacheBytes: uint64(raw.cache_bytes),
	}, nil
}
