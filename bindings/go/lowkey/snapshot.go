// SPDX-License-Identifier: Apache-2.0

package lowkey

/*
#include <lowkey/lowkey.h>
#include <stdlib.h>

int32_t lowkeyGoWrite(void *user, void *data, size_t n_bytes);
int64_t lowkeyGoRead(void *user, void *data, size_t n_bytes);

static lk_status lkgo_save(lk_cache *cache, uint32_t n, const lk_sequence *ids,
                           const void *fingerprint, uint32_t fingerprint_bytes, void *user) {
    lk_snapshot_desc desc;
    lk_snapshot_desc_init(&desc, sizeof desc);
    desc.fingerprint = fingerprint;
    desc.fingerprint_bytes = fingerprint_bytes;
    return lk_snapshot_save(cache, n, ids, &desc, (lk_write_fn)lowkeyGoWrite, user);
}
static lk_status lkgo_save_file(lk_cache *cache, uint32_t n, const lk_sequence *ids,
                                const void *fingerprint, uint32_t fingerprint_bytes, const char *path) {
    lk_snapshot_desc desc;
    lk_snapshot_desc_init(&desc, sizeof desc);
    desc.fingerprint = fingerprint;
    desc.fingerprint_bytes = fingerprint_bytes;
    return lk_snapshot_save_file(cache, n, ids, &desc, path);
}
static lk_status lkgo_load(lk_cache *cache, const void *fingerprint, uint32_t fingerprint_bytes,
                           void *user, const char *path, uint32_t capacity, lk_sequence *ids,
                           uint32_t *n_sequences) {
    lk_snapshot_desc desc;
    lk_snapshot_desc_init(&desc, sizeof desc);
    desc.fingerprint = fingerprint;
    desc.fingerprint_bytes = fingerprint_bytes;
    if (path)
        return lk_snapshot_load_file(cache, &desc, path, capacity, ids, n_sequences);
    return lk_snapshot_load(cache, &desc, lowkeyGoRead, user, capacity, ids, n_sequences);
}
*/
import "C"

import (
	"errors"
	"fmt"
	"io"
	"unsafe"
)

// stream is the value of a handle, through which callbacks reach a writer or reader.
type stream struct {
	writer io.Writer
	reader io.Reader
	err    error
}

// withHandle runs f with C memory that holds a handle of the stream.
func (s *stream) withHandle(f func(user unsafe.Pointer) error) error {
	made, err := newHandle(s)
	if err != nil {
		return err
	}
	defer made.drop()
	err = f(made.user)
	if s.err != nil && errors.Is(err, IO) {
		return fmt.Errorf("%w: %v", err, s.err)
	}
	return err
}

// guard keeps a panic of the host's code from unwinding through C.
func (s *stream) guard() {
	if panicked := recover(); panicked != nil {
		s.err = fmt.Errorf("panic: %v", panicked)
	}
}

//export lowkeyGoWrite
func lowkeyGoWrite(user, data unsafe.Pointer, bytes C.size_t) C.int32_t {
	s := valueOf(user).(*stream)
	s.err = errors.New("the writer did not return")
	func() {
		defer s.guard()
		_, s.err = s.writer.Write(unsafe.Slice((*byte)(data), int(bytes)))
	}()
	if s.err != nil {
		return 1
	}
	return 0
}

//export lowkeyGoRead
func lowkeyGoRead(user, data unsafe.Pointer, bytes C.size_t) C.int64_t {
	s := valueOf(user).(*stream)
	n := 0
	s.err = errors.New("the reader did not return")
	func() {
		defer s.guard()
		n, s.err = io.ReadFull(s.reader, unsafe.Slice((*byte)(data), int(bytes)))
	}()
	if errors.Is(s.err, io.EOF) || errors.Is(s.err, io.ErrUnexpectedEOF) {
		s.err = nil
	}
	if s.err != nil {
		return -1
	}
	return C.int64_t(n)
}

func idsOf(sequences []*Sequence) (*C.lk_sequence, C.uint32_t) {
	if len(sequences) == 0 {
		return nil, 0
	}
	ids := make([]C.lk_sequence, len(sequences))
	for i, sequence := range sequences {
		ids[i] = sequence.id
	}
	return &ids[0], C.uint32_t(len(ids))
}

// fingerprintOf is a copy in C memory, since a Go pointer may not be stored in a struct of C.
func fingerprintOf(fingerprint []byte) (unsafe.Pointer, C.uint32_t, func()) {
	if len(fingerprint) == 0 {
		return nil, 0, func() {}
	}
	block := C.CBytes(fingerprint)
	return block, C.uint32_t(len(fingerprint)), func() { C.free(block) }
}

// Save writes sequences of the cache, all of them when none is named, to a writer.
// fingerprint is the host's name of the model, at most 256 bytes; a load must give the same.
func (c *Cache) Save(writer io.Writer, fingerprint []byte, sequences ...*Sequence) error {
	mark, bytes, free := fingerprintOf(fingerprint)
	defer free()
	ids, n := idsOf(sequences)
	s := &stream{writer: writer}
	return s.withHandle(func(user unsafe.Pointer) error {
		return c.alone(func(ptr *C.lk_cache) C.lk_status {
			return C.lkgo_save(ptr, n, ids, mark, bytes, user)
		})
	})
}

// SaveFile writes them to a file, which replaces a file of its name; after a crash it is the whole old
// one or the whole new one.
func (c *Cache) SaveFile(path string, fingerprint []byte, sequences ...*Sequence) error {
	mark, bytes, free := fingerprintOf(fingerprint)
	defer free()
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	ids, n := idsOf(sequences)
	return c.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lkgo_save_file(ptr, n, ids, mark, bytes, name)
	})
}

// Load reads all sequences of a snapshot, at most most of them. Its bytes need not be trusted.
func (c *Cache) Load(reader io.Reader, fingerprint []byte, most int) ([]*Sequence, error) {
	var loaded []*Sequence
	s := &stream{reader: reader}
	err := s.withHandle(func(user unsafe.Pointer) (err error) {
		loaded, err = c.load(user, nil, fingerprint, most)
		return err
	})
	return loaded, err
}

// LoadFile reads them from a file.
func (c *Cache) LoadFile(path string, fingerprint []byte, most int) ([]*Sequence, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	return c.load(nil, name, fingerprint, most)
}

func (c *Cache) load(user unsafe.Pointer, path *C.char, fingerprint []byte, most int) ([]*Sequence, error) {
	if most < 0 || most > 1<<16 {
		return nil, refuse(fmt.Sprintf("most is %d sequences, must be 0 to 65536", most))
	}
	mark, bytes, free := fingerprintOf(fingerprint)
	defer free()
	ids := make([]C.lk_sequence, most+1)
	var n C.uint32_t
	err := c.alone(func(ptr *C.lk_cache) C.lk_status {
		return C.lkgo_load(ptr, mark, bytes, user, path, C.uint32_t(most), &ids[0], &n)
	})
	if err != nil {
		return nil, err
	}
	loaded := make([]*Sequence, n)
	for i := range loaded {
		loaded[i] = &Sequence{cache: c, id: ids[i]}
	}
	return loaded, nil
}
