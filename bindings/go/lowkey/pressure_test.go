// SPDX-License-Identifier: Apache-2.0

package lowkey

import (
	"errors"
	"testing"
)

// crowded is a small cache, and the arguments of its pressure function so far.
func crowded(t testing.TB, answer func(calls []Pressure) PressureAction) (*Cache, *[]Pressure) {
	calls := new([]Pressure)
	device := must[*Context](t)(Open(ContextOptions{Threads: 1}))
	plan := must[*Plan](t)(NewPlan("fp16", geometry()))
	cache := must[*Cache](t)(device.NewCache(geometry(), plan, CacheOptions{
		BudgetBytes: 3 << 20, MaxBudgetBytes: 4 << 20, SlabBytes: 256 << 10, MaxSequences: 3,
		Pressure: func(pressure Pressure) PressureAction {
			*calls = append(*calls, pressure)
			return answer(*calls)
		},
	}))
	t.Cleanup(func() {
		cache.Close()
		check(t, device.Close())
	})
	return cache, calls
}

// fill takes steps of 64 tokens until one is refused.
func fill(t testing.TB, sequence *Sequence) error {
	for {
		step, err := sequence.cache.Begin(StepOptions{}, NewTokens{sequence, 64})
		if err != nil {
			return err
		}
		run(t, step, 0)
		check(t, step.Commit())
	}
}

func TestPressureRemovesRaisesAndRefuses(t *testing.T) {
	var victim *Sequence
	cache, calls := crowded(t, func(calls []Pressure) PressureAction {
		switch len(calls) {
		case 1:
			return PressureAction{Remove: []*Sequence{victim}}
		case 2:
			return PressureAction{BudgetBytes: calls[1].BudgetBytes + 1<<20}
		}
		return PressureAction{}
	})
	victim = must[*Sequence](t)(cache.AddSequence())
	kept := must[*Sequence](t)(cache.AddSequence())
	take(t, victim, 256)
	wants(t, fill(t, kept), Budget, "the budget of 4194304 bytes")
	if first := (*calls)[0]; len(*calls) < 3 || first.ShortfallBytes == 0 || first.BudgetBytes != 3<<20 {
		t.Fatal(*calls)
	}
	if stats := must[Stats](t)(cache.Stats()); stats.BudgetBytes != 4<<20 || stats.Sequences != 1 {
		t.Fatal(stats)
	}
	_, err := victim.Len()
	wants(t, err, NotFound, "")
}

func TestPressureWithoutMeaningIsRefused(t *testing.T) {
	for name, answer := range map[string]func([]Pressure) PressureAction{
		"panic":         func([]Pressure) PressureAction { panic("of the host's own making") },
		"lower budget":  func([]Pressure) PressureAction { return PressureAction{BudgetBytes: 1} },
		"higher budget": func([]Pressure) PressureAction { return PressureAction{BudgetBytes: 5 << 20} },
		"many":          func([]Pressure) PressureAction { return PressureAction{Remove: make([]*Sequence, 9)} },
		"nobody":        func([]Pressure) PressureAction { return PressureAction{Remove: []*Sequence{{id: 999}}} },
	} {
		cache, _ := crowded(t, answer)
		sequence := must[*Sequence](t)(cache.AddSequence())
		if err := fill(t, sequence); !errors.Is(err, Budget) && !errors.Is(err, Argument) && !errors.Is(err, NotFound) {
			t.Fatal(name, err)
		}
		check(t, sequence.Truncate(64))
		take(t, sequence, 64)
	}
}
