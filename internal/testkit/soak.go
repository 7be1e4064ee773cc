package testkit

import "os"

// Soaking tells whether this is the soak, "make soak": loops are long, and matrices whole.
func Soaking() bool { return os.Getenv("TSUGIKI_SOAK") != "" }

// Times is how often a loop goes round: a few times in make test, many times in the soak.
func Times(few, many int) int {
	if Soaking() {
		return many
	}
	return few
}
