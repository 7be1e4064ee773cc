package api_test

import (
	"testing"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// The logging driver (native/logger) looks for the daemon where api does.
func TestLoggerKnowsDefaultSocket(t *testing.T) {
	testkit.CheckC(t, "../native/logger/options.c", map[string]any{"DEFAULT_AGENT": api.DefaultSocket})
}
