// SPDX-License-Identifier: Apache-2.0

package lowkey

import "testing"

func TestValuesHaveADimOfTheirOwn(t *testing.T) {
	geometry := Geometry{{QueryHeads: 4, KVHeads: 2, HeadDim: 64, ValueDim: 32},
		{QueryHeads: 16, KVHeads: 1, HeadDim: 96, ValueDim: 64, Latent: true}}
	plan := must[*Plan](t)(NewPlan("fp16", geometry))
	defer plan.Close()
	wants(t, plan.SetValue(1, All, ValueRule{Bits: 4}), Argument, "layer is 1, a latent one")
	context := must[*Context](t)(Open(ContextOptions{Threads: 1}))
	wide := Capability{HeadDim: 576, GroupSize: 16, KeyBits: 4, ValueBits: 4, ValueDim: 512}
	wants(t, context.Supports(wide), Argument, "head_dim is 576")
	wide.Latent = true
	check(t, context.Supports(wide))
	cache := must[*Cache](t)(context.NewCache(geometry, plan, CacheOptions{BudgetBytes: 64 << 20}))
	t.Cleanup(func() {
		cache.Close()
		check(t, context.Close())
	})
	sequence := must[*Sequence](t)(cache.AddSequence())
	step := must[*Step](t)(cache.Begin(StepOptions{}, NewTokens{sequence, 1}))
	tensor := func(values []float32, heads, dim int) Tensor {
		return must[Tensor](t)(Of(values, heads, dim))
	}
	k, q, out := make([]float32, 2*64), make([]float32, 4*64), make([]float32, 4*32)
	v := make([]float32, 2*32)
	for i := range v {
		v[i] = 0.25
	}
	none := Tensor{}
	if step.Layer(0, tensor(k, 2, 64), tensor(k, 2, 64), tensor(q, 4, 64), tensor(out, 4, 32), none) == nil {
		t.Fatal("values of 64 channels were taken")
	}
	check(t, step.Layer(0, tensor(k, 2, 64), tensor(v, 2, 32), tensor(q, 4, 64), tensor(out, 4, 32), none))
	for i, x := range out {
		if x != 0.25 {
			t.Fatal(i, x)
		}
	}
	// A token that attends to itself alone has the first channels of its key for an output.
	k, q, out = make([]float32, 96), make([]float32, 16*96), make([]float32, 16*64)
	for c := range k {
		k[c] = float32(c)
	}
	check(t, step.Layer(1, tensor(k, 1, 96), none, tensor(q, 16, 96), tensor(out, 16, 64), none))
	for i, x := range out {
		if x != k[i%64] {
			t.Fatal(i, x)
		}
	}
	check(t, step.Commit())
}
