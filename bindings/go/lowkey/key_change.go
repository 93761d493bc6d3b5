// SPDX-License-Identifier: Apache-2.0

package lowkey

// #include <lowkey/lowkey.h>
import "C"

import "math"

// padded is a copy of at least 576 numbers, as many as C may read for the channels; missing numbers
// are NaNs, which C refuses. padded(nil) is nil.
func padded(numbers []float32) []float32 {
	if numbers == nil {
		return nil
	}
	all := append([]float32(nil), numbers...)
	for len(all) < 576 {
		all = append(all, float32(math.NaN()))
	}
	return all
}

// SetKeyCenters sets constants that are subtracted from the key channels before they are stored,
// one for each channel; nil removes them. See lk_plan_set_key_centers.
func (p *Plan) SetKeyCenters(layer, kvHead uint32, centers []float32) error {
	padded := padded(centers)
	return p.with(func(ptr *C.lk_plan) C.lk_status {
		return C.lk_plan_set_key_centers(ptr, C.uint32_t(layer), C.uint32_t(kvHead), firstOf[C.float](padded))
	})
}

// SetKeyScales sets divisors of the key channels before they are stored, one for each channel; nil
// removes them. See lk_plan_set_key_scales.
func (p *Plan) SetKeyScales(layer, kvHead uint32, scales []float32) error {
	padded := padded(scales)
	return p.with(func(ptr *C.lk_plan) C.lk_status {
		return C.lk_plan_set_key_scales(ptr, C.uint32_t(layer), C.uint32_t(kvHead), firstOf[C.float](padded))
	})
}

// Rotation turns the keys of a layer, and queries, before packing.
type Rotation uint32

// Rotations of keys.
const (
	RotationNone     Rotation = C.LK_ROTATION_NONE
	RotationHadamard Rotation = C.LK_ROTATION_HADAMARD
)

// SetKeyRotation sets the rotation of a layer's keys, one for all KV heads; layer may be All. See
// lk_plan_set_key_rotation.
func (p *Plan) SetKeyRotation(layer uint32, rotation Rotation) error {
	return p.with(func(ptr *C.lk_plan) C.lk_status {
		return C.lk_plan_set_key_rotation(ptr, C.uint32_t(layer), C.lk_rotation(rotation))
	})
}

// KeyRotation is the rotation of a layer's keys.
func (p *Plan) KeyRotation(layer uint32) (Rotation, error) {
	var raw C.lk_rotation
	err := p.with(func(ptr *C.lk_plan) C.lk_status {
		return C.lk_plan_get_key_rotation(ptr, C.uint32_t(layer), &raw)
	})
	return Rotation(raw), err
}
