package notify

import (
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// The gate reads as much of an address as bind of AF_GRAFT expects.
func TestAddressOfGate(t *testing.T) {
	testkit.CheckC(t, "../../policy/c/board.h", map[string]any{"BOARD_ADDRESS_MAX": gateAddressMax})
}
