// SPDX-License-Identifier: Apache-2.0

// A chat loop: each line of the input is a turn, its words are tokens, and the answer has as many.
// "/undo" takes back the last turn, "/save FILE" and "/load FILE" keep the chat over restarts,
// "/stats" prints the bytes of the cache. The numbers are synthetic; a host has a model.
package main

import (
	"bufio"
	"fmt"
	"log"
	"math"
	"os"
	"strings"

	"example.org/lowkey/bindings/go/lowkey"
)

const (
	layers     = 4
	queryHeads = 8
	kvHeads    = 2
	headDim    = 128
	budget     = 64 << 20 // bytes
	maxStep    = 512      // tokens
)

// activations stand for a model's numbers for the new tokens of a layer.
func activations(layer, first, tokens, heads int) []float32 {
	data := make([]float32, tokens*heads*headDim)
	for i := range data {
		data[i] = float32(math.Sin(float64(first+i)*0.37 + float64(layer)))
	}
	return data
}

type chat struct {
	cache    *lowkey.Cache
	sequence *lowkey.Sequence
	turns    []uint64 // where each turn began
}

// take runs new tokens through all layers.
func (c *chat) take(tokens int) error {
	length, err := c.sequence.Len()
	if err != nil {
		return err
	}
	step, err := c.cache.Begin(lowkey.StepOptions{}, lowkey.NewTokens{Sequence: c.sequence, Tokens: uint32(tokens)})
	if err != nil {
		return err
	}
	defer step.Discard() // nothing after Commit
	out := make([]float32, tokens*queryHeads*headDim)
	for layer := 0; layer < layers; layer++ {
		if err := c.layer(step, layer, int(length), out); err != nil {
			return err
		}
	}
	return step.Commit()
}

func (c *chat) layer(step *lowkey.Step, layer, first int, out []float32) error {
	var tensors [4]lowkey.Tensor
	for i, of := range []struct {
		data  []float32
		heads int
	}{
		{activations(layer, first, step.Tokens(), kvHeads), kvHeads},
		{activations(layer+1, first, step.Tokens(), kvHeads), kvHeads},
		{activations(layer+2, first, step.Tokens(), queryHeads), queryHeads},
		{out, queryHeads},
	} {
		var err error
		if tensors[i], err = lowkey.Of(of.data, of.heads, headDim); err != nil {
			return err
		}
	}
	return step.Layer(layer, tensors[0], tensors[1], tensors[2], tensors[3], lowkey.Tensor{})
}

func (c *chat) turn(words []string) error {
	length, err := c.sequence.Len()
	if err != nil {
		return err
	}
	for rest := len(words); rest > 0; rest -= maxStep {
		n := rest
		if n > maxStep {
			n = maxStep
		}
		if err := c.take(n); err != nil {
			return err
		}
	}
	c.turns = append(c.turns, length)
	for range words { // the answer, a token at a time
		if err := c.take(1); err != nil {
			return err
		}
	}
	return nil
}

func (c *chat) undo() error {
	if len(c.turns) == 0 {
		return nil
	}
	last := c.turns[len(c.turns)-1]
	c.turns = c.turns[:len(c.turns)-1]
	return c.sequence.Truncate(last)
}

// fingerprint names the model, so that the chat of another is refused.
var fingerprint = []byte("sines, 4 layers")

// load continues a chat that was saved.
func (c *chat) load(path string) error {
	loaded, err := c.cache.LoadFile(path, fingerprint, 1)
	if err != nil {
		return err
	}
	if err := c.sequence.Remove(); err != nil {
		return err
	}
	c.sequence, c.turns = loaded[0], nil
	return nil
}

func open() (*chat, error) {
	context, err := lowkey.Open(lowkey.ContextOptions{})
	if err != nil {
		return nil, err
	}
	geometry := lowkey.Uniform(layers, lowkey.Layer{QueryHeads: queryHeads, KVHeads: kvHeads, HeadDim: headDim})
	plan, err := lowkey.NewPlan("kitty-pro", geometry)
	if err != nil {
		return nil, err
	}
	defer plan.Close()
	cache, err := context.NewCache(geometry, plan, lowkey.CacheOptions{BudgetBytes: budget, MaxSequences: 2,
		MaxStepTokens: maxStep})
	if err != nil {
		return nil, err
	}
	sequence, err := cache.AddSequence()
	return &chat{cache: cache, sequence: sequence}, err
}

func main() {
	log.SetFlags(0)
	c, err := open()
	if err != nil {
		log.Fatal(err)
	}
	defer c.cache.Close()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		err = nil
		switch {
		case line == "/undo":
			err = c.undo()
		case strings.HasPrefix(line, "/save "):
			err = c.cache.SaveFile(strings.TrimPrefix(line, "/save "), fingerprint, c.sequence)
		case strings.HasPrefix(line, "/load "):
			err = c.load(strings.TrimPrefix(line, "/load "))
		case line == "/stats":
			var stats lowkey.Stats
			stats, err = c.cache.Stats()
			fmt.Printf("%d tokens: %d bytes packed, %d at 16 bits, budget %d\n", stats.Tokens,
				stats.PayloadBytes+stats.MetadataBytes, stats.RecentBytes, stats.BudgetBytes)
		default:
			err = c.turn(strings.Fields(line))
		}
		if err != nil {
			log.Print(err)
		}
	}
}
