// SPDX-License-Identifier: Apache-2.0

package lowkey

import (
	"math"
	"testing"
)

func TestTokensOfASpanSeeLaterOnes(t *testing.T) {
	cache := newCache(t, "fp16")
	sequence := must[*Sequence](t)(cache.AddSequence())
	outputs := func(spans [][3]uint32) []float32 {
		step := must[*Step](t)(cache.Begin(StepOptions{Spans: spans}, NewTokens{sequence, 12}))
		out := run(t, step, 0)
		check(t, step.Discard())
		return out
	}
	causal, spanned := outputs(nil), outputs([][3]uint32{{0, 3, 9}})
	for token := 0; token < 12; token++ {
		apart := 0.0
		for i := token * queryHeads * headDim; i < (token+1)*queryHeads*headDim; i++ {
			apart = math.Max(apart, math.Abs(float64(causal[i]-spanned[i])))
		}
		if (apart > 1e-3) != (token >= 3 && token < 8) {
			t.Fatal(token, apart)
		}
	}
}

func TestWrongSpansAreRefused(t *testing.T) {
	cache := newCache(t, "fp16")
	sequence := must[*Sequence](t)(cache.AddSequence())
	_, err := cache.Begin(StepOptions{Spans: [][3]uint32{{0, 2, 5}}}, NewTokens{sequence, 4})
	wants(t, err, Argument, "span 0 has tokens 2 to 5")
	both := StepOptions{Spans: [][3]uint32{{0, 2, 4}}, Parents: []int32{-1, 0, 1, 2}}
	_, err = cache.Begin(both, NewTokens{sequence, 4})
	wants(t, err, Argument, "not both")
}
