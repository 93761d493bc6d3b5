// SPDX-License-Identifier: Apache-2.0

// Package lowkey keeps the key/value cache of language models in packed pages of 1 to 16 bits and
// attends on the packed bytes: liblowkey through cgo, found by pkg-config.
//
// A Context is an open device, a Cache belongs to it, a Sequence to the cache, and a Step takes
// the new tokens of one or more sequences through all layers. Close may be called twice, and a
// finalizer calls it for forgotten objects. Calls on a closed object return ErrClosed.
//
// All types may be used from any goroutine: calls that need a cache alone wait for each other;
// Stats and Poll never wait.
package lowkey

/*
#cgo pkg-config: lowkey
#include <lowkey/lowkey.h>
*/
import "C"

import (
	"errors"
	"runtime"
	"unsafe"
)

// Status is the kind of a refusal. It is an error itself, for errors.Is(err, lowkey.Budget).
type Status int32

// The statuses of <lowkey/base.h>, which has the remedy for each.
const (
	Argument    Status = C.LK_E_ARGUMENT
	State       Status = C.LK_E_STATE
	NotFound    Status = C.LK_E_NOT_FOUND
	Unsupported Status = C.LK_E_UNSUPPORTED
	NoMemory    Status = C.LK_E_NOMEM
	Budget      Status = C.LK_E_BUDGET
	Corrupt     Status = C.LK_E_CORRUPT
	Mismatch    Status = C.LK_E_MISMATCH
	Data        Status = C.LK_E_DATA
	Busy        Status = C.LK_E_BUSY
	IO          Status = C.LK_E_IO
	Device      Status = C.LK_E_DEVICE
	Internal    Status = C.LK_E_INTERNAL
)

func (s Status) Error() string {
	return C.GoString(C.lk_status_text(C.lk_status(s)))
}

// String is the name of the status, for example "LK_E_BUDGET".
func (s Status) String() string {
	return C.GoString(C.lk_status_name(C.lk_status(s)))
}

// Error is a refusal with the library's sentence, which names the value at fault.
type Error struct {
	Status   Status
	Sentence string
}

func (e *Error) Error() string { return e.Sentence }

// Is reports whether target is the error's Status.
func (e *Error) Is(target error) bool {
	status, ok := target.(Status)
	return ok && status == e.Status
}

// ErrClosed is returned by every call on a closed object.
var ErrClosed = errors.New("lowkey: it was closed")

func refuse(sentence string) error { return &Error{Argument, sentence} }

// call runs one call of C. When that fails, call reads its sentence, which belongs to the thread.
func call(f func() C.lk_status) error {
	collect()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if status := f(); status != C.LK_OK {
		return lastError(status)
	}
	return nil
}

func lastError(status C.lk_status) error {
	sentence := make([]byte, 512)
	for {
		var needed C.size_t
		C.lk_last_error((*C.char)(unsafe.Pointer(&sentence[0])), C.size_t(len(sentence)), &needed)
		if int(needed) <= len(sentence) {
			break
		}
		sentence = make([]byte, int(needed))
	}
	return &Error{Status(status), C.GoString((*C.char)(unsafe.Pointer(&sentence[0])))}
}

// Version is the release of the library that is loaded, "major.minor.patch".
func Version() string { return C.GoString(C.lk_version()) }

// BuildInfo is one line with version, compiler, backends and options of the loaded library.
func BuildInfo() string { return C.GoString(C.lk_build_info()) }
