// SPDX-License-Identifier: Apache-2.0

package lowkey

import "testing"

func TestDefaultPlanKeepsItsLimit(t *testing.T) {
	named := must[*Plan](t)(NewPlan("default", geometry()))
	plan := must[*Plan](t)(DefaultPlan(geometry(), 0))
	if text := must[[]byte](t)(plan.JSON()); string(text) != string(must[[]byte](t)(named.JSON())) {
		t.Fatal(string(text))
	}
	narrow := must[*Plan](t)(DefaultPlan(geometry(), 3))
	if size := must[PlanSize](t)(narrow.Bytes(8192, 1, 512)); size.BitsPerValue > 3 {
		t.Fatal(size.BitsPerValue)
	}
	_, err := DefaultPlan(geometry(), 1)
	wants(t, err, Budget, "must be at least")
	_, err = DefaultPlan(geometry(), 17)
	wants(t, err, Argument, "from 0 to 16")
}
