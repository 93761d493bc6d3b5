// SPDX-License-Identifier: Apache-2.0

//go:build lowkey_gc

package lowkey

import "runtime"

// collect runs the garbage collector before each call, so that memory which nothing keeps alive
// is freed before C reads it: go test -tags lowkey_gc.
func collect() { runtime.GC() }
