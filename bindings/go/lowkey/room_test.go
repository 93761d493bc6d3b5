package lowkey

import (
	"errors"
	"testing"
)

// crowded is a cache that some sequences fill, and its pressure function's questions.
func crowded(t testing.TB, answer func(asked []Pressure) Relief) (*Cache, *[]Pressure) {
	asked := new([]Pressure)
	device := must[*Context](t)(Open(ContextOptions{Threads: 1}))
	plan := must[*Plan](t)(NewPlan("fp16", geometry()))
	cache := must[*Cache](t)(device.NewCache(geometry(), plan, CacheOptions{
		BudgetBytes: 3 << 20, MaxBudgetBytes: 4 << 20, SlabBytes: 256 << 10, MaxSequences: 3,
		Pressure: func(question Pressure) Relief {
			*asked = append(*asked, question)
			return answer(*asked)
		},
	}))
	t.Cleanup(func() {
		cache.Close()
		check(t, device.Close())
	})
	return cache, asked
}

// fill takes steps of 64 tokens until one is refused.
func fill(t testing.TB, sequence *Sequence) error {
	for {
		step, err := sequence.cache.Begin(StepOptions{}, Part{sequence, 64})
		if err != nil {
			return err
		}
		run(t, step, 0)
		check(t, step.Commit())
	}
}

func TestPressureRemovesRaisesAndRefuses(t *testing.T) {
	var victim *Sequence
	cache, asked := crowded(t, func(asked []Pressure) Relief {
		switch len(asked) {
		case 1:
			return Relief{Remove: []*Sequence{victim}}
		case 2:
			return Relief{BudgetBytes: asked[1].BudgetBytes + 1<<20}
		}
		return Relief{}
	})
	victim = must[*Sequence](t)(cache.AddSequence())
	kept := must[*Sequence](t)(cache.AddSequence())
	take(t, victim, 256)
	wants(t, fill(t, kept), Budget, "is short of")
	if first := (*asked)[0]; len(*asked) < 3 || first.LackingBytes == 0 || first.BudgetBytes != 3<<20 {
		t.Fatal(*asked)
	}
	if stats := must[Stats](t)(cache.Stats()); stats.BudgetBytes != 4<<20 || stats.Sequences != 1 {
		t.Fatal(stats)
	}
	_, err := victim.Len()
	wants(t, err, NotFound, "")
}

func TestPressureWithoutMeaningIsRefused(t *testing.T) {
	for name, relief := range map[string]func([]Pressure) Relief{
		"panic":         func([]Pressure) Relief { panic("of the host's own making") },
		"lower budget":  func([]Pressure) Relief { return Relief{BudgetBytes: 1} },
		"higher budget": func([]Pressure) Relief { return Relief{BudgetBytes: 5 << 20} },
		"many":          func([]Pressure) Relief { return Relief{Remove: make([]*Sequence, 9)} },
		"nobody":        func([]Pressure) Relief { return Relief{Remove: []*Sequence{{id: 999}}} },
	} {
		cache, _ := crowded(t, relief)
		sequence := must[*Sequence](t)(cache.AddSequence())
		if err := fill(t, sequence); !errors.Is(err, Budget) && !errors.Is(err, Argument) && !errors.Is(err, NotFound) {
			t.Fatal(name, err)
		}
		check(t, sequence.Truncate(64))
		take(t, sequence, 64)
	}
}
