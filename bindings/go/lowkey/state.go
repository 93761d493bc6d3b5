// SPDX-License-Identifier: Apache-2.0

package lowkey

// #include <lowkey/lowkey.h>
import "C"

import "unsafe"

// StateMemory is where the bytes of a state are in the open step; see lk_state.
type StateMemory struct {
	Data   uintptr // first byte, of the host's or of the CUDA device's memory; 0 on Vulkan
	Buffer uint64  // a VkBuffer, or 0
	Offset uint64  // of the first byte in the buffer
	Bytes  uint64
}

// State is the place of a state of the sequence at an index of the step. The host reads and writes it
// until the commit; the place stays the same for the cache's life.
func (s *Step) State(sequence, state uint32) (StateMemory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.open(0); err != nil {
		return StateMemory{}, err
	}
	var raw C.lk_state
	C.lk_state_init(&raw, C.sizeof_lk_state)
	err := s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lk_step_state(ptr, C.uint32_t(sequence), C.uint32_t(state), &raw)
	})
	if err != nil {
		return StateMemory{}, err
	}
	return StateMemory{uintptr(raw.data), uint64(raw.buffer), uint64(raw.offset_bytes), uint64(raw.bytes)}, nil
}

// ReadState copies a state to memory of its length, after the queue's work.
func (s *Step) ReadState(sequence, state uint32, to []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.open(0); err != nil {
		return err
	}
	return s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lk_step_read_state(ptr, C.uint32_t(sequence), C.uint32_t(state),
			unsafe.Pointer(firstOf[C.uchar](to)), C.uint64_t(len(to)))
	})
}

// WriteState copies memory of its length to a state, after the queue's work.
func (s *Step) WriteState(sequence, state uint32, from []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.open(0); err != nil {
		return err
	}
	return s.cache.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lk_step_write_state(ptr, C.uint32_t(sequence), C.uint32_t(state),
			unsafe.Pointer(firstOf[C.uchar](from)), C.uint64_t(len(from)))
	})
}
