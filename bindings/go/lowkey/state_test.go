// SPDX-License-Identifier: Apache-2.0

package lowkey

import (
	"bytes"
	"testing"
)

func stateCache(t *testing.T) *Cache {
	t.Helper()
	context := must[*Context](t)(Open(ContextOptions{Threads: 1}))
	plan := must[*Plan](t)(NewPlan("kivi2", geometry()))
	defer plan.Close()
	cache := must[*Cache](t)(context.NewCache(geometry(), plan, CacheOptions{
		BudgetBytes: 64 << 20, MaxSequences: 4, MaxStepTokens: 512,
		States: StateOptions{Bytes: []uint64{16, 48}, Versions: 2, IntervalTokens: 4}}))
	t.Cleanup(func() {
		cache.Close()
		check(t, context.Close())
	})
	return cache
}

// stateStep finds `before` in the second state and leaves `after`.
func stateStep(t *testing.T, sequence *Sequence, tokens int, before, after byte) {
	t.Helper()
	first := int(must[uint64](t)(sequence.Len()))
	step := must[*Step](t)(sequence.cache.Begin(StepOptions{}, NewTokens{sequence, uint32(tokens)}))
	state := make([]byte, 48)
	check(t, step.ReadState(0, 1, state))
	if !bytes.Equal(state, bytes.Repeat([]byte{before}, 48)) {
		t.Fatal(state, before)
	}
	run(t, step, first)
	check(t, step.WriteState(0, 1, bytes.Repeat([]byte{after}, 48)))
	check(t, step.Commit())
}

func TestStatesFollowTheirSequences(t *testing.T) {
	cache := stateCache(t)
	sequence := must[*Sequence](t)(cache.AddSequence())
	for i := byte(0); i < 4; i++ {
		stateStep(t, sequence, 4, i, i+1)
	}
	fork := must[*Sequence](t)(sequence.Fork(8))
	stateStep(t, fork, 1, 2, 50)
	if n := must[uint64](t)(sequence.FindState(11)); n != 8 {
		t.Fatal(n)
	}
	wants(t, sequence.Truncate(11), Unsupported, "the newest one before is after 8")
	if n := must[uint64](t)(sequence.Rollback(11)); n != 8 {
		t.Fatal(n)
	}
	stateStep(t, sequence, 1, 2, 3)
	if stats := must[Stats](t)(cache.Stats()); stats.StateBytes == 0 {
		t.Fatal(stats)
	}
}

func TestStatePlaces(t *testing.T) {
	cache := stateCache(t)
	sequence := must[*Sequence](t)(cache.AddSequence())
	step := must[*Step](t)(cache.Begin(StepOptions{}, NewTokens{sequence, 1}))
	place := must[StateMemory](t)(step.State(0, 1))
	if place.Bytes != 48 || place.Data == 0 || place.Buffer != 0 {
		t.Fatal(place)
	}
	_, err := step.State(1, 0)
	wants(t, err, Argument, "sequence is 1, the step has 1")
	wants(t, step.ReadState(0, 2, make([]byte, 16)), Argument, "state is 2")
	wants(t, step.WriteState(0, 0, make([]byte, 48)), Argument, "bytes is 48, state 0 has 16")
	wants(t, step.ReadState(0, 0, nil), Argument, "NULL")
	check(t, step.Discard())
	_, err = step.State(0, 0)
	wants(t, err, State, "the step has ended")
}

func TestStateBudget(t *testing.T) {
	options := StateOptions{Bytes: []uint64{16, 48}, Versions: 2}
	one := must[uint64](t)(options.BudgetBytes(1))
	if three := must[uint64](t)(options.BudgetBytes(3)); three != 3*one || one == 0 {
		t.Fatal(one, three)
	}
	if none := must[uint64](t)(StateOptions{}.BudgetBytes(3)); none != 0 {
		t.Fatal(none)
	}
	_, err := StateOptions{Bytes: []uint64{20}}.BudgetBytes(1)
	wants(t, err, Argument, "not a multiple of 16")
}
