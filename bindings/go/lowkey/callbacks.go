// SPDX-License-Identifier: Apache-2.0

package lowkey

/*
#include <lowkey/lowkey.h>
#include <stdlib.h>
*/
import "C"

import (
	"runtime/cgo"
	"unsafe"
)

// handle is the user pointer of a callback: C memory that holds a cgo.Handle, never a Go pointer. The
// zero value is no handle.
type handle struct{ user unsafe.Pointer }

func newHandle(value any) (handle, error) {
	made := cgo.NewHandle(value)
	user := C.malloc(C.size_t(unsafe.Sizeof(made)))
	if user == nil {
		made.Delete()
		return handle{}, &Error{NoMemory, "no memory for a handle"}
	}
	*(*cgo.Handle)(user) = made
	return handle{user}, nil
}

func (h *handle) drop() {
	if h.user != nil {
		(*cgo.Handle)(h.user).Delete()
		C.free(h.user)
		h.user = nil
	}
}

func valueOf(user unsafe.Pointer) any { return (*cgo.Handle)(user).Value() }

// LogLevel is the level of a log message.
type LogLevel uint32

// Levels of a log function.
const (
	LogError   LogLevel = C.LK_LOG_ERROR
	LogWarning LogLevel = C.LK_LOG_WARNING
	LogInfo    LogLevel = C.LK_LOG_INFO
	LogDebug   LogLevel = C.LK_LOG_DEBUG
)

//export lowkeyGoLog
func lowkeyGoLog(user unsafe.Pointer, level C.lk_log_level, message *C.char) {
	// A panic must not unwind through C, and there is no call to return it from.
	defer func() { _ = recover() }()
	log := valueOf(user).(func(LogLevel, string))
	log(LogLevel(level), C.GoString(message))
}

// Pressure is why a step does not fit when the ladders have ended; see lk_pressure.
type Pressure struct {
	ShortfallBytes uint64 // that the reservation needs beyond the budget
	ReservedBytes  uint64 // that the cache holds
	BudgetBytes    uint64
}

// PressureAction is the answer to a Pressure: sequences to remove, none of the step's, or else a budget
// above the old one. The zero value refuses, and Begin returns Budget.
type PressureAction struct {
	Remove      []*Sequence
	BudgetBytes uint64
}

//export lowkeyGoPressure
func lowkeyGoPressure(user unsafe.Pointer, raw *C.lk_pressure) (action C.lk_pressure_action) {
	// A panic counts as a refusal.
	defer func() {
		if recover() != nil {
			action = C.LK_PRESSURE_REFUSE
		}
	}()
	answer := valueOf(user).(func(Pressure) PressureAction)
	answered := answer(Pressure{uint64(raw.shortfall_bytes), uint64(raw.reserved_bytes), uint64(raw.budget_bytes)})
	if len(answered.Remove) > 0 && len(answered.Remove) <= int(raw.capacity) {
		ids := unsafe.Slice(raw.ids, len(answered.Remove))
		for i, sequence := range answered.Remove {
			ids[i] = sequence.id
		}
		raw.n_ids = C.uint32_t(len(ids))
		return C.LK_PRESSURE_REMOVE
	}
	if answered.BudgetBytes != 0 {
		raw.budget_bytes = C.uint64_t(answered.BudgetBytes)
		return C.LK_PRESSURE_BUDGET
	}
	return C.LK_PRESSURE_REFUSE
}
