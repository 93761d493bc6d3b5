//go:build lowkey_gc

package lowkey

import "runtime"

// collect runs the garbage collector before each call, so that a pointer that nothing keeps alive
// is gone by then: go test -tags lowkey_gc.
func collect() { runtime.GC() }
