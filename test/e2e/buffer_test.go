package e2e

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// syncBuffer holds what a running program prints, to be read meanwhile.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// await waits until all texts have been printed. What a program has printed comes here by a pipe and
// a goroutine, so it may come later than what the program has done since.
func (s *syncBuffer) await(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		testkit.Eventually(t, func() error {
			if printed := s.String(); !strings.Contains(printed, text) {
				return fmt.Errorf("no %q is in what was printed:\n%s", text, printed)
			}
			return nil
		})
	}
}
