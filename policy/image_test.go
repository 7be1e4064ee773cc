package policy

import (
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// The C side's numbers and layouts are those of this package.
func TestImageIsThatOfC(t *testing.T) {
	testkit.CheckC(t, "c/rules.h", map[string]any{
		"RULES_MAGIC":           imageMagic,
		"RULES_VERSION":         imageVersion,
		"struct rules":          imageHeader{},
		"struct rules_prefix":   imagePrefix{},
		"struct rules_range":    imageRange{},
		"struct rules_endpoint": imageEndpoint{},
	})
}
