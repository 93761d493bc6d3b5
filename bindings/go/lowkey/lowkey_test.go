// SPDX-License-Identifier: Apache-2.0

package lowkey

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

const (
	layers     = 2
	queryHeads = 4
	kvHeads    = 2
	headDim    = 64
)

func geometry() Geometry {
	return Uniform(layers, Layer{QueryHeads: queryHeads, KVHeads: kvHeads, HeadDim: headDim})
}

// values depend only on their position.
func values(first, tokens, heads int, salt uint64) []float32 {
	width := heads * headDim
	data := make([]float32, tokens*width)
	for i := range data {
		mixed := (uint64(first*width+i) ^ salt<<40) * 0x9e3779b97f4a7c15
		data[i] = float32(mixed>>40)/(1<<23) - 1
	}
	return data
}

func must[T any](t testing.TB) func(value T, err error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wants(t testing.TB, err error, status Status, text string) {
	t.Helper()
	if !errors.Is(err, status) || !strings.Contains(err.Error(), text) {
		t.Fatalf("%v, wanted %v with %q", err, status, text)
	}
}

func newCache(t testing.TB, preset string) *Cache {
	t.Helper()
	context := must[*Context](t)(Open(ContextOptions{Threads: 1}))
	plan := must[*Plan](t)(NewPlan(preset, geometry()))
	defer plan.Close()
	cache := must[*Cache](t)(context.NewCache(geometry(), plan,
		CacheOptions{BudgetBytes: 64 << 20, MaxSequences: 4, MaxStepTokens: 512}))
	t.Cleanup(func() {
		cache.Close()
		check(t, context.Close())
	})
	return cache
}

func run(t testing.TB, step *Step, first int) []float32 {
	t.Helper()
	tensor := must[Tensor](t)
	out := make([]float32, step.Tokens()*queryHeads*headDim)
	for layer := 0; layer < layers; layer++ {
		salt := uint64(layer) * 3
		check(t, step.Layer(layer,
			tensor(Of(values(first, step.Tokens(), kvHeads, salt), kvHeads, headDim)),
			tensor(Of(values(first, step.Tokens(), kvHeads, salt+1), kvHeads, headDim)),
			tensor(Of(values(first, step.Tokens(), queryHeads, salt+2), queryHeads, headDim)),
			tensor(Of(out, queryHeads, headDim)), Tensor{}))
	}
	return out
}

func take(t testing.TB, sequence *Sequence, tokens int) []float32 {
	t.Helper()
	first := int(must[uint64](t)(sequence.Len()))
	step := must[*Step](t)(sequence.cache.Begin(StepOptions{}, NewTokens{sequence, uint32(tokens)}))
	out := run(t, step, first)
	check(t, step.Commit())
	return out
}

func TestVersionAndDevices(t *testing.T) {
	if Version() == "" || !strings.Contains(BuildInfo(), Version()) {
		t.Fatal(Version(), BuildInfo())
	}
	for _, device := range must[[]DeviceInfo](t)(Devices()) {
		if device.Backend == CPU && device.Threads > 0 {
			return
		}
	}
	t.Fatal("the CPU is a device")
}

func TestChunksGiveWhatOnePromptGives(t *testing.T) {
	cache := newCache(t, "fp16")
	whole, chunked := must[*Sequence](t)(cache.AddSequence()), must[*Sequence](t)(cache.AddSequence())
	all := take(t, whole, 200)
	take(t, chunked, 150)
	for i, x := range take(t, chunked, 50) {
		if math.Abs(float64(x-all[150*queryHeads*headDim+i])) > 1e-3 {
			t.Fatal(i, x, all[150*queryHeads*headDim+i])
		}
	}
}

func TestBuffersLiveFromAppendToAttend(t *testing.T) {
	cache := newCache(t, "kitty")
	one, other := must[*Sequence](t)(cache.AddSequence()), must[*Sequence](t)(cache.AddSequence())
	wanted := take(t, one, 3)
	step := must[*Step](t)(cache.Begin(StepOptions{}, NewTokens{other, 3}))
	tensor := must[Tensor](t)
	out := make([]float32, len(wanted))
	for layer := 0; layer < layers; layer++ {
		keys := must[*Buffer[float32]](t)(NewBuffer[float32](3 * kvHeads * headDim))
		vals := must[*Buffer[float32]](t)(NewBuffer[float32](3 * kvHeads * headDim))
		salt := uint64(layer) * 3
		copy(keys.Slice(), values(0, 3, kvHeads, salt))
		copy(vals.Slice(), values(0, 3, kvHeads, salt+1))
		check(t, step.Append(layer, tensor(keys.Tensor(kvHeads, headDim)), tensor(vals.Tensor(kvHeads, headDim))))
		keys, vals = nil, nil
		runtime.GC() // memory that only the step refers to must stay
		q := tensor(Of(values(0, 3, queryHeads, salt+2), queryHeads, headDim))
		lse := make([]float32, 3*queryHeads)
		check(t, step.Attend(layer, q, tensor(Of(out, queryHeads, headDim)), tensor(Of(lse, queryHeads, 1))))
		if lse[0] == 0 || math.IsNaN(float64(lse[0])) {
			t.Fatal("no LSE")
		}
	}
	check(t, step.Commit())
	for i := range out {
		if out[i] != wanted[i] {
			t.Fatal(i, out[i], wanted[i])
		}
	}
	slice := tensor(Of(values(0, 1, kvHeads, 0), kvHeads, headDim))
	step = must[*Step](t)(cache.Begin(StepOptions{}, NewTokens{one, 1}))
	defer step.Discard()
	wants(t, step.Append(0, slice, slice), Argument, "Buffer")
}

func TestStepsEndOnce(t *testing.T) {
	cache := newCache(t, "fp16")
	sequence := must[*Sequence](t)(cache.AddSequence())
	take(t, sequence, 10)
	step := must[*Step](t)(cache.Begin(StepOptions{}, NewTokens{sequence, 5}))
	_, err := cache.Begin(StepOptions{}, NewTokens{sequence, 5})
	wants(t, err, State, "open")
	run(t, step, 10)
	wants(t, step.Commit(1, 2), Argument, "2 counts")
	check(t, step.Commit(2))
	check(t, step.Discard())
	wants(t, step.Commit(), State, "ended")
	if tokens := must[uint64](t)(sequence.Len()); tokens != 12 {
		t.Fatal(tokens)
	}
	step = must[*Step](t)(cache.Begin(StepOptions{}, NewTokens{sequence, 5}))
	check(t, step.Discard())
	if tokens := must[uint64](t)(sequence.Len()); tokens != 12 {
		t.Fatal(tokens)
	}
}

func TestDraftTreesTakeParents(t *testing.T) {
	cache := newCache(t, "fp16")
	sequence := must[*Sequence](t)(cache.AddSequence())
	take(t, sequence, 8)
	step := must[*Step](t)(cache.Begin(StepOptions{Parents: []int32{-1, 0, 0}}, NewTokens{sequence, 3}))
	run(t, step, 8)
	wants(t, step.Commit(3), Argument, "chain")
	check(t, step.Commit(2))
	_, err := cache.Begin(StepOptions{Parents: []int32{-1}}, NewTokens{sequence, 3})
	wants(t, err, Argument, "1 parents")
}

func TestMisuseIsRefused(t *testing.T) {
	cache, other := newCache(t, "fp16"), newCache(t, "fp16")
	sequence := must[*Sequence](t)(cache.AddSequence())
	_, err := other.Begin(StepOptions{}, NewTokens{sequence, 1})
	wants(t, err, Argument, "another cache")
	_, err = cache.Begin(StepOptions{})
	wants(t, err, Argument, "n_sequences")
	_, err = Of([]float32{1, 2, 3}, kvHeads, headDim)
	wants(t, err, Argument, "3 elements")
	_, err = Of([]Float16{}, kvHeads, headDim)
	wants(t, err, Argument, "0 elements")
	wants(t, sequence.Truncate(1), Argument, "n_tokens")
	step := must[*Step](t)(cache.Begin(StepOptions{}, NewTokens{sequence, 2}))
	defer step.Discard()
	wrong := must[Tensor](t)(Of(values(0, 3, kvHeads, 0), kvHeads, headDim))
	wants(t, step.Layer(0, wrong, wrong, wrong, wrong, Tensor{}), Argument, "k is [3][2][64]")
	wants(t, step.Layer(9, wrong, wrong, wrong, wrong, Tensor{}), Argument, "layer is 9")
	wants(t, sequence.Remove(), Busy, "")
}

func TestNaNsPoisonTheStep(t *testing.T) {
	cache := newCache(t, "fp16")
	sequence := must[*Sequence](t)(cache.AddSequence())
	step := must[*Step](t)(cache.Begin(StepOptions{}, NewTokens{sequence, 1}))
	data := values(0, 1, kvHeads, 0)
	data[7] = float32(math.NaN())
	keys := must[Tensor](t)(Of(data, kvHeads, headDim))
	queries := must[Tensor](t)(Of(values(0, 1, queryHeads, 0), queryHeads, headDim))
	wants(t, step.Layer(0, keys, keys, queries, queries, Tensor{}), Data, "")
	wants(t, step.Commit(), Data, "")
	wants(t, cache.Poll(), Data, "")
	check(t, step.Discard())
	take(t, sequence, 1)
}

func TestNothingCrashesAfterClose(t *testing.T) {
	context := must[*Context](t)(Open(ContextOptions{}))
	plan := must[*Plan](t)(NewPlan("fp16", geometry()))
	cache := must[*Cache](t)(context.NewCache(geometry(), plan, CacheOptions{BudgetBytes: 64 << 20}))
	sequence := must[*Sequence](t)(cache.AddSequence())
	step := must[*Step](t)(cache.Begin(StepOptions{}, NewTokens{sequence, 1}))
	wants(t, context.Close(), Busy, "")
	cache.Close()
	cache.Close()
	check(t, context.Close())
	check(t, context.Close())
	plan.Close()
	plan.Close()
	keys := must[Tensor](t)(Of(values(0, 1, kvHeads, 0), kvHeads, headDim))
	queries := must[Tensor](t)(Of(values(0, 1, queryHeads, 0), queryHeads, headDim))
	_, stats := cache.Stats()
	_, add := cache.AddSequence()
	_, length := sequence.Len()
	_, begin := cache.Begin(StepOptions{}, NewTokens{sequence, 1})
	_, device := context.Device()
	_, again := context.NewCache(geometry(), plan, CacheOptions{BudgetBytes: 1})
	_, text := plan.JSON()
	_, size := plan.Bytes(1, 1, 1)
	for i, err := range []error{stats, add, length, begin, device, again, text, size, cache.Poll(),
		sequence.Truncate(0), sequence.Remove(), step.Layer(0, keys, keys, queries, queries, Tensor{}),
		step.Commit(), step.Replay(), step.Discard(), plan.SetName("x"), plan.Validate(nil),
		context.Supports(Capability{HeadDim: 128, GroupSize: 1, KeyBits: 2, ValueBits: 2})} {
		if !errors.Is(err, ErrClosed) {
			t.Fatalf("call %d after Close: %v", i, err)
		}
	}
}

func TestForgottenObjectsAreCollected(t *testing.T) {
	for i := 0; i < 8; i++ {
		context := must[*Context](t)(Open(ContextOptions{Threads: 1}))
		plan := must[*Plan](t)(NewPlan("kitty", geometry()))
		cache := must[*Cache](t)(context.NewCache(geometry(), plan, CacheOptions{BudgetBytes: 64 << 20}))
		take(t, must[*Sequence](t)(cache.AddSequence()), 1)
		context, plan, cache = nil, nil, nil
		runtime.GC()
	}
}

func TestBudgetsHold(t *testing.T) {
	context := must[*Context](t)(Open(ContextOptions{Threads: 1}))
	plan := must[*Plan](t)(NewPlan("fp16", geometry()))
	_, err := context.NewCache(geometry(), plan, CacheOptions{BudgetBytes: 1 << 10})
	wants(t, err, Budget, "bytes")
	size := must[PlanSize](t)(plan.Bytes(256, 1, 256))
	cache := must[*Cache](t)(context.NewCache(geometry(), plan,
		CacheOptions{BudgetBytes: size.CacheBytes, MaxStepTokens: 256, SlabBytes: 256 << 10}))
	defer cache.Close()
	sequence := must[*Sequence](t)(cache.AddSequence())
	take(t, sequence, 256)
	for i := 0; ; i++ {
		step, err := cache.Begin(StepOptions{}, NewTokens{sequence, 128})
		if err != nil {
			wants(t, err, Budget, fmt.Sprintf("the budget of %d bytes", size.CacheBytes))
			break
		}
		run(t, step, 256+128*i)
		check(t, step.Commit())
	}
	stats := must[Stats](t)(cache.Stats())
	if stats.ReservedBytes > stats.BudgetBytes {
		t.Fatal(stats)
	}
}

func TestKeptPagesComeBack(t *testing.T) {
	context := must[*Context](t)(Open(ContextOptions{Threads: 1}))
	model := Uniform(layers, Layer{QueryHeads: queryHeads, KVHeads: kvHeads, HeadDim: headDim, WindowTokens: 64})
	plan := must[*Plan](t)(NewPlan("kitty", model))
	freed := must[PlanSize](t)(plan.Bytes(1500, 1, 500))
	kept := must[PlanSize](t)(plan.BytesWithWindowed(1500, 1, 500))
	if kept.PayloadBytes <= freed.PayloadBytes {
		t.Fatal(kept, freed)
	}
	for keeps, size := range map[bool]PlanSize{false: freed, true: kept} {
		cache := must[*Cache](t)(context.NewCache(model, plan,
			CacheOptions{BudgetBytes: size.CacheBytes, MaxStepTokens: 500, KeepWindowed: keeps}))
		sequence := must[*Sequence](t)(cache.AddSequence())
		for i := 0; i < 3; i++ {
			take(t, sequence, 500)
		}
		err := sequence.Truncate(700)
		if keeps {
			check(t, err)
		} else {
			wants(t, err, Unsupported, "window of 64")
		}
		cache.Close()
	}
}

func TestPlansAreBuiltAndReadBack(t *testing.T) {
	plan := must[*Plan](t)(NewPlan("fp16", geometry()))
	check(t, plan.SetName("mine"))
	check(t, plan.SetKey(All, All, KeyRule{Bits: 2, BoostChannels: 16, BoostBits: 4, BoostRanking: RankingKey}))
	check(t, plan.SetValue(1, 0, ValueRule{Bits: 4, Group: 32}))
	check(t, plan.SetMetadata(All, MetadataF8))
	check(t, plan.SetPages(64))
	check(t, plan.SetRecent(16, 64))
	check(t, plan.Validate(geometry()))
	bits, boosted, err := plan.Width(0, 0, false, 5, 0, ChunkNone)
	check(t, err)
	if bits != 2 || boosted != 4 {
		t.Fatal(bits, boosted)
	}
	text := must[[]byte](t)(plan.JSON())
	again := must[*Plan](t)(PlanFromJSON(text))
	if string(must[[]byte](t)(again.JSON())) != string(text) || must[string](t)(again.Name()) != "mine" {
		t.Fatal(string(text))
	}
	wants(t, plan.Validate(Uniform(3, geometry()[0])), Mismatch, "")
	wants(t, plan.SetKey(0, 0, KeyRule{Bits: 2, ChannelBits: []uint8{2, 2}}), Argument, "")
	_, err = PlanFromJSON([]byte("{"))
	wants(t, err, Corrupt, "")
	_, err = PlanFromJSON(nil)
	wants(t, err, Corrupt, "")
	_, err = NewPlan("no such", geometry())
	wants(t, err, NotFound, "no such")
	broken := geometry()
	broken[0].SinkLogits = []float32{1}
	_, err = NewPlan("fp16", broken)
	wants(t, err, Argument, "1 sink logits")
	if names := PresetNames(); len(names) < 6 || names[0] != "fp16" {
		t.Fatal(names)
	}
}

func TestLayersHaveBudgets(t *testing.T) {
	plan := must[*Plan](t)(NewPlan("pm-kvq", geometry()))
	defer plan.Close()
	check(t, plan.SetLayerBudget(1, 1<<20))
	if budget := must[uint64](t)(plan.LayerBudget(1)); budget != 1<<20 {
		t.Errorf("the budget of layer 1 is %d", budget)
	}
	if budget := must[uint64](t)(plan.LayerBudget(0)); budget != 0 {
		t.Errorf("the budget of layer 0 is %d", budget)
	}
	for layer, want := range []uint32{16, 2} {
		if rung := must[uint32](t)(plan.Rung(uint32(layer), 100000, 1, 512)); rung != want {
			t.Errorf("layer %d is at rung %d, not %d", layer, rung, want)
		}
	}
	check(t, plan.SetLadder(0, nil, 0))
	wants(t, plan.SetLayerBudget(0, 1), Argument, "layer 0 has no ladder")
}

func TestALayerReadsTheKeysOfAnother(t *testing.T) {
	kvLayer := uint32(0)
	model := append(geometry(), Layer{QueryHeads: 4 * kvHeads, KVHeads: kvHeads, HeadDim: headDim, KVLayer: &kvLayer})
	plan := must[*Plan](t)(NewPlan("fp16", model))
	defer plan.Close()
	wants(t, plan.SetMetadata(layers, MetadataF8), Argument, "set that layer's")
	context := must[*Context](t)(Open(ContextOptions{Threads: 1}))
	cache := must[*Cache](t)(context.NewCache(model, plan, CacheOptions{BudgetBytes: 64 << 20}))
	defer func() {
		cache.Close()
		check(t, context.Close())
	}()
	sequence := must[*Sequence](t)(cache.AddSequence())
	step := must[*Step](t)(cache.Begin(StepOptions{}, NewTokens{sequence, 3}))
	run(t, step, 0)
	tensor := must[Tensor](t)
	out := make([]float32, 3*4*kvHeads*headDim)
	check(t, step.Attend(layers, tensor(Of(values(0, 3, 4*kvHeads, 9), 4*kvHeads, headDim)),
		tensor(Of(out, 4*kvHeads, headDim)), Tensor{}))
	check(t, step.Commit())
	// The first token attends to its own value alone, whatever the query.
	if out[0] == 0 || out[0] != out[headDim] {
		t.Errorf("the first two query heads of the first token give %g and %g", out[0], out[headDim])
	}
}

func TestLogsArriveAndTheirPanicsStayInGo(t *testing.T) {
	var mu sync.Mutex
	var lines []string
	context := must[*Context](t)(Open(ContextOptions{LogLevel: LogDebug, Log: func(_ LogLevel, line string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, line)
		panic("of the host's own making")
	}}))
	plan := must[*Plan](t)(NewPlan("fp16", geometry()))
	_, err := context.NewCache(geometry(), plan, CacheOptions{BudgetBytes: 1})
	wants(t, err, Budget, "")
	check(t, context.Close())
	if len(lines) == 0 {
		t.Fatal("no line")
	}
}

func TestGoroutinesShareACache(t *testing.T) {
	cache := newCache(t, "kitty")
	sequence := must[*Sequence](t)(cache.AddSequence())
	var group sync.WaitGroup
	for i := 0; i < 4; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for tokens := uint64(0); tokens < 32; {
				stats, err := cache.Stats()
				if err != nil || cache.Poll() != nil {
					t.Error(err)
					return
				}
				tokens = stats.Tokens
				runtime.Gosched()
			}
		}()
	}
	for i := 0; i < 32; i++ {
		take(t, sequence, 1)
	}
	group.Wait()
}

func TestSplitsMergeToTheWhole(t *testing.T) {
	context := must[*Context](t)(Open(ContextOptions{}))
	split := func(x float32) MergeSplit {
		out := must[*Buffer[float32]](t)(NewBuffer[float32](headDim))
		lse := must[*Buffer[float32]](t)(NewBuffer[float32](1))
		for i := range out.Slice() {
			out.Slice()[i] = x
		}
		return MergeSplit{must[Tensor](t)(out.Tensor(1, headDim)), must[Tensor](t)(lse.Tensor(1, 1))}
	}
	out, lse := make([]float32, headDim), make([]float32, 1)
	results := must[Tensor](t)(Of(out, 1, headDim))
	check(t, context.Merge(Queue{}, []MergeSplit{split(1), split(3)}, results, must[Tensor](t)(Of(lse, 1, 1))))
	for _, x := range out {
		if math.Abs(float64(x)-2) > 1e-6 {
			t.Fatal(out)
		}
	}
	if math.Abs(float64(lse[0])-math.Ln2) > 1e-6 {
		t.Fatal(lse)
	}
	wants(t, context.Merge(Queue{}, nil, results, Tensor{}), Argument, "0 splits")
}

func same(t testing.TB, a, b []float32, bound float64) {
	t.Helper()
	for i := range a {
		if math.Abs(float64(a[i]-b[i])) > bound {
			t.Fatal(i, a[i], b[i])
		}
	}
}

func TestForksShareAndLiveOn(t *testing.T) {
	cache := newCache(t, "kitty")
	parent := must[*Sequence](t)(cache.AddSequence())
	take(t, parent, 400)
	child := must[*Sequence](t)(parent.Fork(AllTokens))
	early := must[*Sequence](t)(parent.Fork(100))
	if stats := must[Stats](t)(cache.Stats()); stats.SharedBytes == 0 || stats.Tokens != 900 {
		t.Fatal(stats)
	}
	wanted := take(t, parent, 1)
	check(t, parent.Remove())
	same(t, take(t, child, 1), wanted, 0)
	if tokens := must[uint64](t)(early.Len()); tokens != 100 {
		t.Fatal(tokens)
	}
	_, err := child.Fork(999)
	wants(t, err, Argument, "999")
}

func TestAnyPathOfADraftTreeIsKept(t *testing.T) {
	cache := newCache(t, "fp16")
	sequence := must[*Sequence](t)(cache.AddSequence())
	take(t, sequence, 8)
	step := must[*Step](t)(cache.Begin(StepOptions{Parents: []int32{-1, 0, 0, 2}}, NewTokens{sequence, 4}))
	run(t, step, 8)
	wants(t, step.CommitPaths([]uint32{0, 1, 2}), Argument, "")
	wants(t, step.CommitPaths(), Argument, "0 paths")
	check(t, step.CommitPaths([]uint32{0, 2, 3}))
	if tokens := must[uint64](t)(sequence.Len()); tokens != 11 {
		t.Fatal(tokens)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

type broken struct{}

func (broken) Read([]byte) (int, error) { panic("of the host's own making") }

func TestSnapshotsGoThroughStreamsAndFiles(t *testing.T) {
	cache, other := newCache(t, "kitty-pro"), newCache(t, "kitty-pro")
	sequence := must[*Sequence](t)(cache.AddSequence())
	take(t, sequence, 300)
	mark := []byte("model 7")
	var saved bytes.Buffer
	check(t, cache.Save(&saved, mark, sequence))
	loaded := must[[]*Sequence](t)(other.Load(bytes.NewReader(saved.Bytes()), mark, 1))
	same(t, take(t, loaded[0], 1), take(t, sequence, 1), 0)

	_, err := other.Load(bytes.NewReader(saved.Bytes()), nil, 1)
	wants(t, err, Mismatch, "")
	_, err = other.Load(bytes.NewReader(saved.Bytes()[:saved.Len()/2]), mark, 1)
	wants(t, err, Corrupt, "")
	_, err = other.Load(broken{}, mark, 1)
	wants(t, err, IO, "own making")
	wants(t, cache.Save(full{}, mark), IO, "the disk is full")

	path := filepath.Join(t.TempDir(), "chat.lksnap")
	check(t, cache.SaveFile(path, mark))
	if n := len(must[[]*Sequence](t)(other.LoadFile(path, mark, 2))); n != 1 {
		t.Fatal(n)
	}
	_, err = other.LoadFile(path+"x", mark, 2)
	wants(t, err, IO, "")
}

func TestPagesShrinkForALowerBudget(t *testing.T) {
	cache := newCache(t, "pm-kvq")
	sequence := must[*Sequence](t)(cache.AddSequence())
	take(t, sequence, 512)
	take(t, sequence, 1)
	wide := must[Stats](t)(cache.Stats())
	check(t, cache.Shrink(All, 4))
	narrow := must[Stats](t)(cache.Stats())
	if narrow.PagesShrunk <= wide.PagesShrunk || narrow.PlaneBytes[2] == 0 {
		t.Fatal(wide, narrow)
	}
	wants(t, cache.Shrink(0, 8), Argument, "")
	wants(t, cache.SetBudget(1000), Budget, "bytes")
	check(t, cache.SetBudget(32<<20))
	take(t, sequence, 1)
}

func BenchmarkLayer(b *testing.B) {
	cache := newCache(b, "fp16")
	sequence := must[*Sequence](b)(cache.AddSequence())
	tensor := must[Tensor](b)
	k := tensor(Of(values(0, 1, kvHeads, 0), kvHeads, headDim))
	q := tensor(Of(values(0, 1, queryHeads, 0), queryHeads, headDim))
	out := tensor(Of(make([]float32, queryHeads*headDim), queryHeads, headDim))
	for i := 0; i < b.N; i++ {
		step := must[*Step](b)(cache.Begin(StepOptions{}, NewTokens{sequence, 1}))
		for layer := 0; layer < layers; layer++ {
			check(b, step.Layer(layer, k, k, q, out, Tensor{}))
		}
		check(b, step.Discard())
	}
}
