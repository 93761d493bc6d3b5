//go:build !lowkey_gc

package lowkey

func collect() {}
