package lowkey

/*
#include <lowkey/lowkey.h>
*/
import "C"

import (
	"runtime/cgo"
	"unsafe"
)

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
	// user is a C allocation that holds the handle, never a Go pointer.
	log := (*(*cgo.Handle)(user)).Value().(func(LogLevel, string))
	log(LogLevel(level), C.GoString(message))
}
