// SPDX-License-Identifier: Apache-2.0

// The time of calls through the package: `lowkey bench --bindings` runs this with a number of steps.
// Each step has one token of one head of 32 channels in an empty sequence, where the library has
// almost no work.
package main

import (
	"encoding/json"
	"log"
	"os"
	"sort"
	"strconv"
	"time"

	"example.org/lowkey/bindings/go/lowkey"
)

const headDim = 32

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func medianUS(samples []time.Duration) float64 {
	sort.Slice(samples, func(i, j int) bool { return samples[i] < samples[j] })
	return float64(samples[len(samples)/2].Nanoseconds()) / 1e3
}

func main() {
	steps := 2000
	if len(os.Args) > 1 {
		steps = must(strconv.Atoi(os.Args[1]))
	}
	context := must(lowkey.Open(lowkey.ContextOptions{Threads: 1}))
	defer context.Close()
	geometry := lowkey.Uniform(1, lowkey.Layer{QueryHeads: 1, KVHeads: 1, HeadDim: headDim})
	plan := must(lowkey.NewPlan("fp16", geometry))
	defer plan.Close()
	cache := must(context.NewCache(geometry, plan,
		lowkey.CacheOptions{BudgetBytes: 64 << 20, MaxSequences: 1, MaxStepTokens: 512}))
	defer cache.Close()
	one := lowkey.NewTokens{Sequence: must(cache.AddSequence()), Tokens: 1}
	zeros, out := make([]float32, headDim), make([]float32, headDim)
	buffer := must(lowkey.NewBuffer[float32](headDim))
	kept := must(buffer.Tensor(1, headDim))
	var append_, attend, layer []time.Duration
	for i := 0; i < steps; i++ {
		step := must(cache.Begin(lowkey.StepOptions{}, one))
		begin := time.Now()
		check(step.Append(0, kept, kept))
		appended := time.Now()
		check(step.Attend(0, must(lowkey.Of(zeros, 1, headDim)), must(lowkey.Of(out, 1, headDim)), lowkey.Tensor{}))
		attend = append(attend, time.Since(appended))
		append_ = append(append_, appended.Sub(begin))
		check(step.Discard())

		step = must(cache.Begin(lowkey.StepOptions{}, one))
		begin = time.Now()
		keys := must(lowkey.Of(zeros, 1, headDim))
		check(step.Layer(0, keys, keys, keys, must(lowkey.Of(out, 1, headDim)), lowkey.Tensor{}))
		layer = append(layer, time.Since(begin))
		check(step.Discard())
	}
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{"rows": map[string]any{
		"buffers":          map[string]float64{"append_us": medianUS(append_), "attend_us": medianUS(attend)},
		"slices, one call": map[string]float64{"layer_us": medianUS(layer)},
	}}))
}
