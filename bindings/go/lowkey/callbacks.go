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

// handle is what C gives back to a callback: memory of C's that holds a cgo.Handle, never a Go
// pointer. The zero value is none.
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

// LogLevel is how much of what happens a log function is told.
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
	// A panic must not unwind through C; there is nobody here to tell.
	defer func() { _ = recover() }()
	log := valueOf(user).(func(LogLevel, string))
	log(LogLevel(level), C.GoString(message))
}

// Pressure is what a cache lacks when its ladders have ended.
type Pressure struct {
	LackingBytes  uint64 // to what the step needs
	ReservedBytes uint64 // that the cache holds
	BudgetBytes   uint64
}

// Relief is what a cache is given in answer to a Pressure: sequences to remove, none of the step's,
// or else a budget above the one before; the zero value refuses, and Begin returns Budget.
type Relief struct {
	Remove      []*Sequence
	BudgetBytes uint64
}

//export lowkeyGoPressure
func lowkeyGoPressure(user unsafe.Pointer, raw *C.lk_pressure) (action C.lk_pressure_action) {
	// A function that panics refuses.
	defer func() {
		if recover() != nil {
			action = C.LK_PRESSURE_REFUSE
		}
	}()
	ask := valueOf(user).(func(Pressure) Relief)
	relief := ask(Pressure{uint64(raw.shortfall_bytes), uint64(raw.reserved_bytes), uint64(raw.budget_bytes)})
	if len(relief.Remove) > 0 && len(relief.Remove) <= int(raw.capacity) {
		ids := unsafe.Slice(raw.ids, len(relief.Remove))
		for i, sequence := range relief.Remove {
			ids[i] = sequence.id
		}
		raw.n_ids = C.uint32_t(len(ids))
		return C.LK_PRESSURE_REMOVE
	}
	if relief.BudgetBytes != 0 {
		raw.budget_bytes = C.uint64_t(relief.BudgetBytes)
		return C.LK_PRESSURE_BUDGET
	}
	return C.LK_PRESSURE_REFUSE
}
