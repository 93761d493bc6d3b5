// SPDX-License-Identifier: Apache-2.0

package lowkey

/*
#include <lowkey/lowkey.h>

void lowkeyGoLog(void *user, lk_log_level level, char *message);

static void lkgo_log_to(lk_context_desc *desc, void *user) {
    desc->log = (lk_log_fn)lowkeyGoLog;
    desc->log_user = user;
}
static lk_status lkgo_open(const lk_context_desc *desc, lk_context **out) {
    return lk_context_open(desc, LK_ABI_VERSION, out);
}
*/
import "C"

import (
	"runtime"
	"sync"
)

// Backend is the kind of device that runs the work.
type Backend uint32

// Backends of a build.
const (
	CPU    Backend = C.LK_BACKEND_CPU
	CUDA   Backend = C.LK_BACKEND_CUDA
	Vulkan Backend = C.LK_BACKEND_VULKAN
)

// DeviceInfo describes a device that a context can be opened on.
type DeviceInfo struct {
	Backend     Backend
	Index       uint32 // among the devices of its backend
	Threads     uint32 // hardware threads of a CPU, else 0
	MemoryBytes uint64
	FreeBytes   uint64
	Name        string
	Features    string // for example "avx2 fma f16c" or "sm_90 132 SMs"
}

func deviceInfo(info *C.lk_device_info) DeviceInfo {
	return DeviceInfo{
		Backend:     Backend(info.backend),
		Index:       uint32(info.index),
		Threads:     uint32(info.n_threads),
		MemoryBytes: uint64(info.memory_bytes),
		FreeBytes:   uint64(info.free_bytes),
		Name:        C.GoString(&info.name[0]),
		Features:    C.GoString(&info.features[0]),
	}
}

// Devices lists the devices of this machine that the library can use.
func Devices() ([]DeviceInfo, error) {
	var count C.uint32_t
	if err := call(func() C.lk_status { return C.lk_device_count(&count) }); err != nil {
		return nil, err
	}
	devices := make([]DeviceInfo, 0, count)
	for ordinal := C.uint32_t(0); ordinal < count; ordinal++ {
		var info C.lk_device_info
		C.lk_device_info_init(&info, C.sizeof_lk_device_info)
		if err := call(func() C.lk_status { return C.lk_device_get(ordinal, &info) }); err != nil {
			return nil, err
		}
		devices = append(devices, deviceInfo(&info))
	}
	return devices, nil
}

// ContextOptions are the options of a context. The zero value is the CPU with all its threads.
type ContextOptions struct {
	Backend     Backend // 0 = CPU
	DeviceIndex uint32
	Threads     uint32 // worker threads of the CPU; 0 = all
	CPUMask     uint32 // LK_CPU_* bits of instruction sets that are not used
	// Log gets the messages up to LogLevel, from any goroutine that calls lowkey. It may not call
	// lowkey; a panic in it is dropped.
	Log      func(LogLevel, string)
	LogLevel LogLevel
}

// Context is an open device.
type Context struct {
	mu  sync.RWMutex // only Close holds it to write
	ptr *C.lk_context
	log handle // of the log function
}

// Open opens a context.
func Open(options ContextOptions) (*Context, error) {
	var desc C.lk_context_desc
	C.lk_context_desc_init(&desc, C.sizeof_lk_context_desc)
	if options.Backend != 0 {
		desc.backend = C.lk_backend(options.Backend)
	}
	desc.device_index = C.uint32_t(options.DeviceIndex)
	desc.n_threads = C.uint32_t(options.Threads)
	desc.cpu_mask = C.uint32_t(options.CPUMask)
	context := &Context{}
	if options.Log != nil {
		var err error
		if context.log, err = newHandle(options.Log); err != nil {
			return nil, err
		}
		desc.log_level = C.lk_log_level(options.LogLevel)
		C.lkgo_log_to(&desc, context.log.user)
	}
	if err := call(func() C.lk_status { return C.lkgo_open(&desc, &context.ptr) }); err != nil {
		context.log.drop()
		return nil, err
	}
	runtime.SetFinalizer(context, func(c *Context) { _ = c.Close() })
	return context, nil
}

// Close ends the context. It is refused with Busy while one of its caches is open.
func (c *Context) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ptr == nil {
		return nil
	}
	if err := call(func() C.lk_status { return C.lk_context_close(&c.ptr) }); err != nil {
		return err
	}
	c.log.drop()
	runtime.SetFinalizer(c, nil)
	return nil
}

// with runs a call on the open context.
func (c *Context) with(f func(ptr *C.lk_context) C.lk_status) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.ptr == nil {
		return ErrClosed
	}
	err := call(func() C.lk_status { return f(c.ptr) })
	runtime.KeepAlive(c) // the finalizer must not run while C has the pointer
	return err
}

// Device describes the device that the context was opened on.
func (c *Context) Device() (DeviceInfo, error) {
	var info C.lk_device_info
	C.lk_device_info_init(&info, C.sizeof_lk_device_info)
	err := c.with(func(ptr *C.lk_context) C.lk_status { return C.lk_context_device(ptr, &info) })
	if err != nil {
		return DeviceInfo{}, err
	}
	return deviceInfo(&info), nil
}

// Capability is the pages and tensors that Supports checks; see lk_capability.
type Capability struct {
	HeadDim, GroupSize uint32
	KeyBits, ValueBits uint32
	PageTokens         uint32     // 0 = 128
	Memory             MemoryKind // 0 = Host
	DType              DType      // 0 = F32
	ValueDim           uint32     // channels of values; 0 = HeadDim
	Latent             bool       // values are channels of the keys
}

// Supports reports whether the context can pack and attend such pages: nil, or the refusal that a
// cache would give.
func (c *Context) Supports(capability Capability) error {
	var raw C.lk_capability
	C.lk_capability_init(&raw, C.sizeof_lk_capability)
	raw.head_dim = C.uint32_t(capability.HeadDim)
	raw.group_size = C.uint32_t(capability.GroupSize)
	raw.key_bits = C.uint32_t(capability.KeyBits)
	raw.value_bits = C.uint32_t(capability.ValueBits)
	raw.value_dim = C.uint32_t(capability.ValueDim)
	if capability.Latent {
		raw.is_latent = 1
	}
	raw.page_tokens = 128
	if capability.PageTokens != 0 {
		raw.page_tokens = C.uint32_t(capability.PageTokens)
	}
	raw.memory, raw.dtype = C.LK_MEMORY_HOST, C.LK_F32
	if capability.Memory != 0 {
		raw.memory = C.lk_memory_kind(capability.Memory)
	}
	if capability.DType != 0 {
		raw.dtype = C.lk_dtype(capability.DType)
	}
	return c.with(func(ptr *C.lk_context) C.lk_status { return C.lk_context_supports(ptr, &raw) })
}
