// SPDX-License-Identifier: Apache-2.0

package lowkey

import "testing"

func TestChangedKeysLeaveAttentionAsItIs(t *testing.T) {
	context := must[*Context](t)(Open(ContextOptions{Threads: 1}))
	plan := must[*Plan](t)(NewPlan("fp16", geometry()))
	check(t, plan.SetKeyRotation(All, RotationHadamard))
	if must[Rotation](t)(plan.KeyRotation(0)) != RotationHadamard {
		t.Fatal("not rotated")
	}
	wants(t, plan.SetKeyRotation(All, 2), Argument, "rotation is 2")
	centers := make([]float32, headDim)
	for i := range centers {
		centers[i] = 0.25
	}
	check(t, plan.SetKeyCenters(All, All, centers))
	centered := must[*Cache](t)(context.NewCache(geometry(), plan, CacheOptions{BudgetBytes: 64 << 20}))
	defer centered.Close()
	plain := newCache(t, "fp16")
	same(t, take(t, must[*Sequence](t)(centered.AddSequence()), 20),
		take(t, must[*Sequence](t)(plain.AddSequence()), 20), 1e-3)
	wants(t, plan.SetKeyCenters(All, All, centers[:3]), Argument, "")
	check(t, plan.SetKeyCenters(All, All, nil))
}
