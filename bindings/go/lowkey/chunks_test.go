// SPDX-License-Identifier: Apache-2.0

package lowkey

import (
	"math"
	"testing"
)

// Of the plan "cocktail": 32 sinks, then chunks of 32.
const (
	chunks  = 12
	context = 32 + chunks*32
)

// deferred is a deferred prompt.
func deferred(t testing.TB, cache *Cache) *Sequence {
	sequence := must[*Sequence](t)(cache.AddSequence())
	check(t, sequence.Defer(DeferRefuse))
	take(t, sequence, context)
	return sequence
}

func all(class ChunkClass) []ChunkClass {
	classes := make([]ChunkClass, chunks)
	for i := range classes {
		classes[i] = class
	}
	return classes
}

func TestChunksAreScoredByAttentionAndKeptByClass(t *testing.T) {
	cache := newCache(t, "cocktail")
	sequence := must[*Sequence](t)(cache.AddSequence())
	check(t, sequence.Defer(DeferPack))
	check(t, sequence.ScoreAttention(&ChunkAttention{QueryTokens: 4, Chunks: chunks}))
	_, err := sequence.AttentionScores(chunks)
	wants(t, err, State, "")
	take(t, sequence, context+4)
	scores := must[[]float32](t)(sequence.AttentionScores(chunks))
	sum := 0.0
	for _, score := range scores {
		sum += float64(score)
	}
	if math.Abs(sum-1) > 1e-3 {
		t.Fatal(scores)
	}
	classes, _, err := DefaultChunkQuota().Classes(scores)
	check(t, err)
	if before := must[Chunks](t)(sequence.Chunks()); before.IsAssigned || before.Deferral != DeferPack {
		t.Fatal(before)
	}
	check(t, sequence.AssignChunks(context, classes, scores))
	kept := must[Chunks](t)(sequence.Chunks())
	if !kept.IsAssigned || kept.Deferral != DeferOff || kept.ChunkTokens != 32 || kept.FirstToken != 32 ||
		kept.Narrower != 0 || len(kept.Order) != chunks {
		t.Fatal(kept)
	}
	var seen [chunks]bool
	for i, chunk := range kept.Order {
		if seen[chunk] || kept.Assigned[i] != classes[i] || kept.Stored[i] < kept.Assigned[i] {
			t.Fatal(i, kept)
		}
		seen[chunk] = true
	}
	check(t, sequence.ScoreAttention(nil))
	take(t, sequence, 1)
}

func TestClassesComeBeforeTheContext(t *testing.T) {
	cache := newCache(t, "cocktail")
	sequence := must[*Sequence](t)(cache.AddSequence())
	check(t, sequence.AssignChunks(context, all(ChunkLow), nil))
	if before := must[Chunks](t)(sequence.Chunks()); !before.IsAssigned || before.Pending != chunks {
		t.Fatal(before)
	}
	take(t, sequence, context/2)
	take(t, sequence, context/2)
	if half := must[Chunks](t)(sequence.Chunks()).Pending; half == 0 || half >= chunks {
		t.Fatal(half)
	}
	take(t, sequence, 1)
	kept := must[Chunks](t)(sequence.Chunks())
	if kept.Pending != 0 || kept.Stored[0] != ChunkLow {
		t.Fatal(kept)
	}
}

func TestRetainedOriginalsGiveChunksTheirWidthBack(t *testing.T) {
	cache, wide := newCache(t, "cocktail"), newCache(t, "fp16")
	plain := must[*Sequence](t)(wide.AddSequence())
	take(t, plain, context)
	wanted := take(t, plain, 1)
	for _, budget := range []uint64{0, 16 << 20} {
		sequence := deferred(t, cache)
		check(t, sequence.RetainOriginals(budget))
		check(t, sequence.AssignChunks(context, all(ChunkLow), nil))
		check(t, sequence.AssignChunks(context, all(ChunkHigh), nil))
		kept := must[Chunks](t)(sequence.Chunks())
		if (kept.Narrower == 0) != (budget > 0) || (kept.RetainedBytes > 0) != (budget > 0) {
			t.Fatal(budget, kept)
		}
		out := take(t, sequence, 1)
		if budget > 0 {
			same(t, out, wanted, 1e-3)
		}
	}
}

func TestMisuseOfChunksIsRefused(t *testing.T) {
	cache, without := newCache(t, "cocktail"), newCache(t, "fp16")
	chunkless := must[*Sequence](t)(without.AddSequence())
	wants(t, chunkless.Defer(DeferRefuse), Unsupported, "")
	wants(t, chunkless.RetainOriginals(1), Unsupported, "")
	_, err := chunkless.Chunks()
	wants(t, err, Unsupported, "")
	sequence := deferred(t, cache)
	wants(t, sequence.Defer(7), Argument, "7")
	wants(t, sequence.AssignChunks(context, all(ChunkLow), []float32{1}), Argument, "1 scores for 12 chunks")
	wants(t, sequence.AssignChunks(context+32, all(ChunkLow), nil), Argument, "")
	wants(t, sequence.AssignChunks(context, all(ChunkNone), nil), Argument, "")
	nan := make([]float32, chunks)
	nan[3] = float32(math.NaN())
	wants(t, sequence.AssignChunks(context, all(ChunkLow), nan), Data, "")
	wants(t, sequence.ScoreAttention(&ChunkAttention{QueryTokens: 1, Chunks: 1, Layers: []uint32{9}}), NotFound, "")
	step := must[*Step](t)(cache.Begin(StepOptions{}, NewTokens{sequence, 1}))
	wants(t, sequence.AssignChunks(context, all(ChunkLow), nil), Busy, "")
	wants(t, sequence.Defer(DeferOff), Busy, "")
	check(t, step.Discard())
	if must[Chunks](t)(sequence.Chunks()).IsAssigned {
		t.Fatal("a refused call assigned classes")
	}
	cache.Close()
	_, attention := sequence.AttentionScores(1)
	_, kept := sequence.Chunks()
	for i, err := range []error{attention, kept, sequence.Defer(DeferOff), sequence.RetainOriginals(0),
		sequence.AssignChunks(0, nil, nil), sequence.ScoreAttention(nil)} {
		if err != ErrClosed {
			t.Fatalf("call %d after Close: %v", i, err)
		}
	}
}

func TestChunksAreScoredWithoutACache(t *testing.T) {
	tensor := must[Tensor](t)
	embeddings := tensor(Of([]float32{1, 0, 0, 2, 3, 3}, 1, 2))
	query := tensor(Of([]float32{5, 0}, 1, 2))
	wanted := []float32{1, 0, float32(math.Sqrt(0.5))}
	same(t, must[[]float32](t)(ChunksCosine(embeddings, query)), wanted, 1e-6)
	device := must[*Context](t)(Open(ContextOptions{}))
	scores := make([]float32, 3)
	check(t, device.ChunksCosine(Queue{}, embeddings, query, tensor(Of(scores, 1, 1))))
	same(t, scores, wanted, 1e-6)
	wants(t, device.ChunksCosine(Queue{}, embeddings, query, tensor(Of(scores[:2], 1, 1))), Argument, "scores is [2]")
	_, err := ChunksCosine(embeddings, tensor(Of([]float32{0, 0}, 1, 2)))
	wants(t, err, Data, "")
	_, err = ChunksCosine(embeddings, embeddings)
	wants(t, err, Argument, "query is [3]")
	check(t, device.Close())
	if err := device.ChunksCosine(Queue{}, embeddings, query, tensor(Of(scores, 1, 1))); err != ErrClosed {
		t.Fatal(err)
	}

	bm25 := DefaultBM25()
	found := must[[]float32](t)(bm25.Score([]uint32{1, 2, 3, 3}, []uint64{0, 2, 4}, []uint32{3}))
	if found[0] != 0 || found[1] <= 0 {
		t.Fatal(found)
	}
	if found := must[[]float32](t)(bm25.Score(make([]uint32, 70), nil, nil)); len(found) != 2 || found[0] != 0 {
		t.Fatal(found)
	}
	for _, starts := range [][]uint64{{0, 5}, {0, 3, 2}, {}} {
		_, err := bm25.Score([]uint32{1, 2, 3, 4}, starts, []uint32{3})
		wants(t, err, Argument, "")
	}
	_, err = BM25{}.Score([]uint32{1}, nil, nil)
	wants(t, err, Argument, "chunk_tokens")

	classes, low, high, err := ChunksByThresholds([]float32{0, 0.5, 1}, 0.25, 0.25)
	check(t, err)
	if classes[0] != ChunkLow || classes[1] != ChunkMiddle || classes[2] != ChunkHigh || low != 0.25 || high != 0.75 {
		t.Fatal(classes, low, high)
	}
	_, _, _, err = ChunksByThresholds([]float32{0, float32(math.NaN())}, 0.25, 0.25)
	wants(t, err, Data, "")
	quota := DefaultChunkQuota()
	quota.BlockChunks, quota.BudgetBytes, quota.LowBytes, quota.MiddleBytes, quota.HighBytes = 1, 12, 2, 4, 8
	classes, bytes, err := quota.Classes([]float32{0, 1, 0.5})
	check(t, err)
	if classes[1] != ChunkHigh || bytes != 12 {
		t.Fatal(classes, bytes)
	}
	_, _, err = quota.Classes(make([]float32, 9))
	wants(t, err, Budget, "bytes")
}

func TestPlansHaveChunksAndKeyScales(t *testing.T) {
	plan := must[*Plan](t)(NewPlan("cocktail", geometry()))
	if rule := must[ChunkRule](t)(plan.Chunks()); rule != DefaultChunkRule() {
		t.Fatal(rule)
	}
	for class, wanted := range map[ChunkClass]uint32{ChunkLow: 2, ChunkMiddle: 4, ChunkHigh: 16} {
		if bits, _, err := plan.Width(0, 0, false, 0, 0, class); err != nil || bits != wanted {
			t.Fatal(class, bits, err)
		}
	}
	mix := ChunkMix{Low: 8, Middle: 4}
	if size := must[PlanSize](t)(plan.ChunkBytes(context, 1, 256, mix)); size.Blocks == 0 || size.CacheBytes == 0 {
		t.Fatal(size)
	}
	if bytes := must[uint64](t)(plan.ChunkPrefillBytes(context, 1, 256, mix)); bytes == 0 {
		t.Fatal(bytes)
	}
	_, err := plan.ChunkBytes(context-1, 1, 256, mix)
	wants(t, err, Argument, "")
	_, err = plan.ChunkPrefillBytes(context-1, 1, 256, mix)
	wants(t, err, Argument, "")
	wants(t, plan.SetChunks(ChunkRule{ChunkTokens: 32, LowBits: 3, MiddleBits: 4, HighBits: 16}), Argument, "3")
	check(t, plan.SetChunks(ChunkRule{}))
	if rule := must[ChunkRule](t)(plan.Chunks()); rule != (ChunkRule{}) {
		t.Fatal(rule)
	}

	scales := make([]float32, headDim)
	for i := range scales {
		scales[i] = 4
	}
	scaled := must[*Plan](t)(NewPlan("fp16", geometry()))
	check(t, scaled.SetKeyScales(All, All, scales))
	device := must[*Context](t)(Open(ContextOptions{Threads: 1}))
	cache := must[*Cache](t)(device.NewCache(geometry(), scaled, CacheOptions{BudgetBytes: 64 << 20}))
	defer cache.Close()
	plain := newCache(t, "fp16")
	same(t, take(t, must[*Sequence](t)(cache.AddSequence()), 20),
		take(t, must[*Sequence](t)(plain.AddSequence()), 20), 1e-3)
	wants(t, scaled.SetKeyScales(All, All, scales[:3]), Argument, "")
	wants(t, scaled.SetKeyScales(All, All, make([]float32, headDim)), Argument, "")
	check(t, scaled.SetKeyScales(All, All, nil))
	plan.Close()
	_, closed := plan.Chunks()
	for _, err := range []error{closed, plan.SetChunks(ChunkRule{}), plan.SetKeyScales(All, All, nil)} {
		if err != ErrClosed {
			t.Fatal(err)
		}
	}
}
