// SPDX-License-Identifier: Apache-2.0

package lowkey_test

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"math"

	"example.org/lowkey/bindings/go/lowkey"
)

const (
	layers     = 2
	queryHeads = 4
	kvHeads    = 2
	headDim    = 64
)

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func model() lowkey.Geometry {
	return lowkey.Uniform(layers, lowkey.Layer{QueryHeads: queryHeads, KVHeads: kvHeads, HeadDim: headDim})
}

// tensor stands for a model's numbers.
func tensor(tokens, heads int) lowkey.Tensor {
	data := make([]float32, tokens*heads*headDim)
	for i := range data {
		data[i] = float32(math.Sin(float64(i) * 0.37))
	}
	return must(lowkey.Of(data, heads, headDim))
}

// forward takes the new tokens of a step through all layers.
func forward(step *lowkey.Step) {
	n := step.Tokens()
	for layer := 0; layer < layers; layer++ {
		k, v := tensor(n, kvHeads), tensor(n, kvHeads)
		check(step.Layer(layer, k, v, tensor(n, queryHeads), tensor(n, queryHeads), lowkey.Tensor{}))
	}
}

func appendTokens(cache *lowkey.Cache, sequence *lowkey.Sequence, tokens uint32) {
	step := must(cache.Begin(lowkey.StepOptions{}, lowkey.NewTokens{Sequence: sequence, Tokens: tokens}))
	forward(step)
	check(step.Commit())
}

func newCache(preset string) *lowkey.Cache {
	context := must(lowkey.Open(lowkey.ContextOptions{}))
	plan := must(lowkey.NewPlan(preset, model()))
	size := must(plan.Bytes(1024, 2, 256))
	return must(context.NewCache(model(), plan,
		lowkey.CacheOptions{BudgetBytes: size.CacheBytes, MaxSequences: 2, MaxStepTokens: 256}))
}

// A cache of a model with two layers: a prompt, then one token.
func Example() {
	context := must(lowkey.Open(lowkey.ContextOptions{}))
	defer context.Close()
	plan := must(lowkey.NewPlan("kitty-pro", model()))
	defer plan.Close()
	size := must(plan.Bytes(1024, 1, 256))
	cache := must(context.NewCache(model(), plan, lowkey.CacheOptions{BudgetBytes: size.CacheBytes, MaxStepTokens: 256}))
	defer cache.Close()
	sequence := must(cache.AddSequence())
	for _, tokens := range []uint32{256, 1} {
		step := must(cache.Begin(lowkey.StepOptions{}, lowkey.NewTokens{Sequence: sequence, Tokens: tokens}))
		forward(step)
		check(step.Commit())
	}
	fmt.Println(must(sequence.Len()), "tokens")
	// Output: 257 tokens
}

// Two continuations share the pages of a prompt.
func ExampleSequence_Fork() {
	cache := newCache("kitty-pro")
	defer cache.Close()
	parent := must(cache.AddSequence())
	appendTokens(cache, parent, 256)
	child := must(parent.Fork(lowkey.AllTokens))
	appendTokens(cache, child, 1)
	fmt.Println(must(parent.Len()), must(child.Len()), must(cache.Stats()).SharedBytes > 0)
	// Output: 256 257 true
}

// Back to the end of an earlier turn.
func ExampleSequence_Truncate() {
	cache := newCache("kitty-pro")
	defer cache.Close()
	sequence := must(cache.AddSequence())
	appendTokens(cache, sequence, 200)
	appendTokens(cache, sequence, 50)
	check(sequence.Truncate(200))
	fmt.Println(must(sequence.Len()))
	// Output: 200
}

// A draft of eight tokens, of which the model accepts three.
func ExampleStep_Commit() {
	cache := newCache("fp16")
	defer cache.Close()
	sequence := must(cache.AddSequence())
	draft := must(cache.Begin(lowkey.StepOptions{}, lowkey.NewTokens{Sequence: sequence, Tokens: 8}))
	forward(draft)
	check(draft.Commit(3))
	fmt.Println(must(sequence.Len()))
	// Output: 3
}

// A draft tree: tokens 0-1 and 0-2-3. The model accepts the second path.
func ExampleStep_CommitPaths() {
	cache := newCache("fp16")
	defer cache.Close()
	sequence := must(cache.AddSequence())
	tree := lowkey.StepOptions{Parents: []int32{-1, 0, 0, 2}}
	step := must(cache.Begin(tree, lowkey.NewTokens{Sequence: sequence, Tokens: 4}))
	forward(step)
	check(step.CommitPaths([]uint32{0, 2, 3}))
	fmt.Println(must(sequence.Len()))
	// Output: 3
}

// A conversation outlives its process. The mark names the model, which the snapshot must fit.
func ExampleCache_Save() {
	mark := []byte("model 7")
	first, second := newCache("kitty"), newCache("kitty")
	defer first.Close()
	defer second.Close()
	sequence := must(first.AddSequence())
	appendTokens(first, sequence, 100)

	var saved bytes.Buffer
	check(first.Save(&saved, mark, sequence))
	loaded := must(second.Load(bytes.NewReader(saved.Bytes()), mark, 1))
	fmt.Println(must(loaded[0].Len()))
	_, err := second.Load(bytes.NewReader(saved.Bytes()), []byte("model 8"), 1)
	fmt.Println(errors.Is(err, lowkey.Mismatch))
	// Output:
	// 100
	// true
}

// A plan with keys of 2 bits, in which 16 channels have 4 bits, and values of 4 bits in the second layer.
func ExamplePlan_SetKey() {
	plan := must(lowkey.NewPlan("fp16", model()))
	defer plan.Close()
	check(plan.SetKey(lowkey.All, lowkey.All,
		lowkey.KeyRule{Bits: 2, BoostChannels: 16, BoostBits: 4, BoostRanking: lowkey.RankingKey}))
	check(plan.SetValue(1, lowkey.All, lowkey.ValueRule{Bits: 4, Group: 32}))
	check(plan.Validate(model()))
	bits, boosted, err := plan.Width(0, 0, false, 0, 0, lowkey.ChunkNone)
	check(err)
	fmt.Println(bits, boosted)
	// Output: 2 4
}

// Kinds of refusals are compared, sentences are read.
func ExampleStatus() {
	_, err := lowkey.NewPlan("kitty-max", model())
	fmt.Println(errors.Is(err, lowkey.NotFound))
	// Output: true
}
