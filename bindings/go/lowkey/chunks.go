// SPDX-License-Identifier: Apache-2.0

package lowkey

/*
#include "tensor.h"

static lk_status lkgo_cosine(uint32_t n_chunks, uint32_t n_channels, const lkgo_view *views, void *c,
                             void *q, float *scores) {
    lk_tensor embeddings, query;
    lkgo_tensor(&embeddings, &views[0], c);
    lkgo_tensor(&query, &views[1], q);
    return lk_chunks_cosine(&embeddings, &query, n_chunks, n_channels, scores);
}

static lk_status lkgo_score_cosine(const lk_context *context, lkgo_queue queue, uint32_t n_chunks,
                                   uint32_t n_channels, const lkgo_view *views, void *c, void *q,
                                   void *s) {
    lk_tensor embeddings, query, scores;
    lk_queue made;
    lkgo_tensor(&embeddings, &views[0], c);
    lkgo_tensor(&query, &views[1], q);
    lkgo_tensor(&scores, &views[2], s);
    return lk_chunks_score_cosine(context, lkgo_queue_of(queue, &made), &embeddings, &query, n_chunks,
                                  n_channels, &scores);
}

static lk_status lkgo_score_attention(lk_cache *cache, lk_sequence id, uint32_t n_query_tokens,
                            uint32_t chunk_tokens, uint32_t n_chunks, uint32_t n_layers,
                            const uint32_t *layers) {
    lk_chunk_attention attention;
    lk_chunk_attention_init(&attention, sizeof attention);
    attention.n_query_tokens = n_query_tokens;
    if (chunk_tokens)
        attention.chunk_tokens = chunk_tokens;
    attention.n_chunks = n_chunks;
    attention.n_layers = n_layers;
    attention.layers = layers;
    return lk_chunks_score_attention(cache, id, &attention);
}
*/
import "C"

import (
	"fmt"
	"runtime"
)

// ChunkClass is the class of a chunk: how relevant it is, and so at which width it is kept.
type ChunkClass uint32

// Classes of chunks.
const (
	ChunkNone   ChunkClass = C.LK_CHUNK_NONE
	ChunkLow    ChunkClass = C.LK_CHUNK_LOW
	ChunkMiddle ChunkClass = C.LK_CHUNK_MIDDLE
	ChunkHigh   ChunkClass = C.LK_CHUNK_HIGH
)

// Defer is how a sequence is kept until its chunks have classes.
type Defer uint32

// Modes of deferral; see lk_defer.
const (
	DeferOff    Defer = C.LK_DEFER_OFF    // pages are packed by the plan's rules
	DeferRefuse Defer = C.LK_DEFER_REFUSE // tokens stay at 16 bits; on a shortfall the step is refused
	DeferPack   Defer = C.LK_DEFER_PACK   // on a shortfall the oldest chunks are packed as middle ones
)

func checkEmbeddings(embeddings, query Tensor) error {
	if err := embeddings.check("embeddings", embeddings.tokens, 1, embeddings.headDim); err != nil {
		return err
	}
	return query.check("query", 1, 1, embeddings.headDim)
}

// ChunksCosine scores embeddings [chunks][1][channels] by a query [1][1][channels] in host memory;
// see lk_chunks_cosine.
func ChunksCosine(embeddings, query Tensor) ([]float32, error) {
	if err := checkEmbeddings(embeddings, query); err != nil {
		return nil, err
	}
	scores := make([]float32, embeddings.tokens)
	views := [2]C.lkgo_view{embeddings.view(), query.view()}
	err := call(func() C.lk_status {
		return C.lkgo_cosine(C.uint32_t(embeddings.tokens), C.uint32_t(embeddings.headDim), &views[0],
			embeddings.data, query.data, firstOf[C.float](scores))
	})
	runtime.KeepAlive([]any{embeddings.keep, query.keep})
	if err != nil {
		return nil, err
	}
	return scores, nil
}

// ChunksCosine scores on the context's device: scores are F32 [chunks][1][1]. On a device the
// tensors' memory stays until the queue has passed; see lk_chunks_score_cosine.
func (c *Context) ChunksCosine(queue Queue, embeddings, query, scores Tensor) error {
	if err := checkEmbeddings(embeddings, query); err != nil {
		return err
	}
	if err := scores.check("scores", embeddings.tokens, 1, 1); err != nil {
		return err
	}
	views := [3]C.lkgo_view{embeddings.view(), query.view(), scores.view()}
	err := c.with(func(context *C.lk_context) C.lk_status {
		return C.lkgo_score_cosine(context, queue.raw(), C.uint32_t(embeddings.tokens),
			C.uint32_t(embeddings.headDim), &views[0], embeddings.data, query.data, scores.data)
	})
	runtime.KeepAlive([]any{embeddings.keep, query.keep, scores.keep})
	return err
}

// BM25 has the parameters of BM25; see lk_bm25. DefaultBM25 has the usual values.
type BM25 struct {
	ChunkTokens uint32 // of each chunk, where no starts are given
	K1, B       float64
}

// DefaultBM25 is lk_bm25_init.
func DefaultBM25() BM25 {
	var raw C.lk_bm25
	C.lk_bm25_init(&raw, C.sizeof_lk_bm25)
	return BM25{uint32(raw.chunk_tokens), float64(raw.k1), float64(raw.b)}
}

// Score scores chunks of token ids by those of a query; see lk_chunks_score_bm25. starts has the first
// token of each chunk and the end of the last; nil is the whole chunks of ChunkTokens tokens.
func (o BM25) Score(tokens []uint32, starts []uint64, query []uint32) ([]float32, error) {
	chunks := 0
	switch {
	case starts == nil && o.ChunkTokens > 0:
		chunks = len(tokens) / int(o.ChunkTokens)
	case starts != nil && len(starts) == 0:
		return nil, refuse("starts need the end of the last chunk too")
	case starts != nil:
		chunks = len(starts) - 1
		if end := starts[chunks]; end > uint64(len(tokens)) {
			return nil, refuse(fmt.Sprintf("chunks end at %d of %d tokens", end, len(tokens)))
		}
	}
	var raw C.lk_bm25
	C.lk_bm25_init(&raw, C.sizeof_lk_bm25)
	raw.chunk_tokens, raw.k1, raw.b = C.uint32_t(o.ChunkTokens), C.double(o.K1), C.double(o.B)
	scores := make([]float32, chunks)
	err := call(func() C.lk_status {
		return C.lk_chunks_score_bm25(&raw, firstOf[C.uint32_t](tokens), firstOf[C.uint64_t](starts), C.uint32_t(chunks),
			firstOf[C.uint32_t](query), C.uint32_t(len(query)), firstOf[C.float](scores))
	})
	if err != nil {
		return nil, err
	}
	return scores, nil
}

// ChunksByThresholds gives classes by thresholds within the range of the scores, and the thresholds;
// see lk_chunks_by_thresholds.
func ChunksByThresholds(scores []float32, alpha, beta float64) (classes []ChunkClass, low, high float64, err error) {
	classes = make([]ChunkClass, len(scores))
	var bounds [2]C.double
	err = call(func() C.lk_status {
		return C.lk_chunks_by_thresholds(firstOf[C.float](scores), C.uint32_t(len(scores)), C.double(alpha),
			C.double(beta), firstOf[C.lk_chunk_class](classes), &bounds[0], &bounds[1])
	})
	if err != nil {
		return nil, 0, 0, err
	}
	return classes, float64(bounds[0]), float64(bounds[1]), nil
}

// ChunkQuota is how many chunks each class gets; see lk_chunk_quota. DefaultChunkQuota has the
// library's values.
type ChunkQuota struct {
	BlockChunks                      uint32
	LowShare, HighShare              float64
	BudgetBytes                      uint64 // of all chunks; 0 = shares alone
	LowBytes, MiddleBytes, HighBytes uint64 // of a chunk of each class
}

// DefaultChunkQuota is lk_chunk_quota_init.
func DefaultChunkQuota() ChunkQuota {
	var raw C.lk_chunk_quota
	C.lk_chunk_quota_init(&raw, C.sizeof_lk_chunk_quota)
	return ChunkQuota{BlockChunks: uint32(raw.block_chunks), LowShare: float64(raw.low_share),
		HighShare: float64(raw.high_share)}
}

// Classes gives classes by rank, and the bytes of these chunks; see lk_chunks_by_quota.
func (q ChunkQuota) Classes(scores []float32) (classes []ChunkClass, bytes uint64, err error) {
	var raw C.lk_chunk_quota
	C.lk_chunk_quota_init(&raw, C.sizeof_lk_chunk_quota)
	raw.block_chunks = C.uint32_t(q.BlockChunks)
	raw.low_share, raw.high_share = C.double(q.LowShare), C.double(q.HighShare)
	raw.budget_bytes, raw.low_bytes = C.uint64_t(q.BudgetBytes), C.uint64_t(q.LowBytes)
	raw.middle_bytes, raw.high_bytes = C.uint64_t(q.MiddleBytes), C.uint64_t(q.HighBytes)
	classes = make([]ChunkClass, len(scores))
	var taken C.uint64_t
	err = call(func() C.lk_status {
		return C.lk_chunks_by_quota(firstOf[C.float](scores), C.uint32_t(len(scores)), &raw,
			firstOf[C.lk_chunk_class](classes), &taken)
	})
	if err != nil {
		return nil, 0, err
	}
	return classes, uint64(taken), nil
}

// Defer holds the sequence's tokens at 16 bits until its chunks have classes; see lk_sequence_defer.
func (s *Sequence) Defer(mode Defer) error {
	return s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lk_sequence_defer(ptr, s.id, C.lk_defer(mode))
	})
}

// AssignChunks gives the chunks of the first contextTokens tokens their classes, and ends a
// deferral; see lk_chunks_assign. Tokens of the context may be still to come: its chunks are packed as
// they come. To fill pages, chunks with higher scores are widened first; nil: later chunks are.
func (s *Sequence) AssignChunks(contextTokens uint64, classes []ChunkClass, scores []float32) error {
	if scores != nil && len(scores) != len(classes) {
		return refuse(fmt.Sprintf("%d scores for %d chunks", len(scores), len(classes)))
	}
	return s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lk_chunks_assign(ptr, s.id, C.uint64_t(contextTokens), C.uint32_t(len(classes)),
			firstOf[C.lk_chunk_class](classes), firstOf[C.float](scores))
	})
}

// RetainOriginals keeps the originals of the context in host memory, at most budgetBytes, for later
// classes; 0 frees them. See lk_chunks_retain.
func (s *Sequence) RetainOriginals(budgetBytes uint64) error {
	return s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lk_chunks_retain(ptr, s.id, C.uint64_t(budgetBytes))
	})
}

// Chunks are the chunks of a sequence; see lk_chunks_info and lk_chunks_get.
type Chunks struct {
	ChunkTokens   uint32
	FirstToken    uint64
	IsAssigned    bool
	Deferral      Defer
	Wider         uint32 // chunks kept wider than assigned, to fill pages or after a truncation
	Narrower      uint32 // chunks kept narrower than assigned, because their 16-bit values are gone
	RetainedBytes uint64
	Pending       uint32       // chunks of a context that is still to come whose classes are not laid out yet
	Assigned      []ChunkClass // the class of each chunk that AssignChunks got
	Stored        []ChunkClass // the class at whose width each chunk is kept
	Order         []uint32     // the chunk at each position
}

// Chunks reads the classes, widths and order of the chunks.
func (s *Sequence) Chunks() (Chunks, error) {
	var info C.lk_chunks_info
	C.lk_chunks_info_init(&info, C.sizeof_lk_chunks_info)
	var chunks Chunks
	err := s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		if status := C.lk_chunks_get(ptr, s.id, &info, 0, nil, nil, nil); status != C.LK_OK {
			return status
		}
		n := int(info.n_chunks)
		chunks.Assigned, chunks.Stored, chunks.Order = make([]ChunkClass, n), make([]ChunkClass, n), make([]uint32, n)
		return C.lk_chunks_get(ptr, s.id, &info, info.n_chunks, firstOf[C.lk_chunk_class](chunks.Assigned),
			firstOf[C.lk_chunk_class](chunks.Stored), firstOf[C.uint32_t](chunks.Order))
	})
	if err != nil {
		return Chunks{}, err
	}
	chunks.ChunkTokens, chunks.FirstToken = uint32(info.chunk_tokens), uint64(info.first_token)
	chunks.IsAssigned, chunks.Deferral = info.is_assigned != 0, Defer(info.deferral)
	chunks.Wider, chunks.Narrower = uint32(info.n_wider), uint32(info.n_narrower)
	chunks.RetainedBytes, chunks.Pending = uint64(info.retained_bytes), uint32(info.n_pending)
	return chunks, nil
}

// ChunkAttention is the attention that ScoreAttention scores chunks by; see lk_chunk_attention.
type ChunkAttention struct {
	QueryTokens uint32 // how many of the step's last tokens are the query
	ChunkTokens uint32 // 0 = 32
	Chunks      uint32
	Layers      []uint32 // ascending; nil = all without a sliding window
}

// ScoreAttention scores the context's chunks by attention in the next step; nil cancels that. See
// lk_chunks_score_attention.
func (s *Sequence) ScoreAttention(attention *ChunkAttention) error {
	return s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		if attention == nil {
			return C.lk_chunks_score_attention(ptr, s.id, nil)
		}
		return C.lkgo_score_attention(ptr, s.id, C.uint32_t(attention.QueryTokens), C.uint32_t(attention.ChunkTokens),
			C.uint32_t(attention.Chunks), C.uint32_t(len(attention.Layers)), firstOf[C.uint32_t](attention.Layers))
	})
}

// AttentionScores are the attention scores of the chunks, after the step was committed; chunks is that
// of ScoreAttention.
func (s *Sequence) AttentionScores(chunks uint32) ([]float32, error) {
	scores := make([]float32, int(chunks))
	err := s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lk_chunks_attention_scores(ptr, s.id, C.uint32_t(chunks), firstOf[C.float](scores))
	})
	if err != nil {
		return nil, err
	}
	return scores, nil
}
