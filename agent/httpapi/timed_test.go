package httpapi

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/api"
)

// An answer that comes after all limits have passed is read all the same.
func TestLateAnswer(t *testing.T) {
	late := func(w http.ResponseWriter, _ *http.Request) {
		past := time.Now().Add(-time.Second)
		if err := http.NewResponseController(w).SetWriteDeadline(past); err != nil {
			t.Error(err)
		}
		Answer(w, http.StatusOK, api.Failure{Error: "late"})
	}
	path := filepath.Join(t.TempDir(), "s")
	s, err := Listen(path, New(Routes{"POST /late": late}, slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { _ = s.Close() })
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}
	response, err := client.Post("http://x/late", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || string(text) != `{"error":"late"}`+"\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// deadlines notes how the limit for reading a request is changed.
type deadlines struct {
	http.ResponseWriter
	set []time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.set = append(d.set, at)
	return nil
}

// A request that has come in as a whole has no limit any more, and one that has not has.
func TestRequestHasComeIn(t *testing.T) {
	for name, sent := range map[string]io.Reader{"nothing": nil, "a body": bytes.NewReader([]byte("12345"))} {
		d := &deadlines{ResponseWriter: httptest.NewRecorder()}
		untimed(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if sent != nil {
				var some [4]byte
				if _, err := io.ReadFull(r.Body, some[:]); err != nil || len(d.set) > 0 {
					t.Errorf("%s: %v, and limits %v before its end", name, err, d.set)
				}
			}
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if len(d.set) != 1 || !d.set[0].IsZero() {
				t.Errorf("%s: limits %v", name, d.set)
			}
		})).ServeHTTP(d, httptest.NewRequest(http.MethodPost, "/", sent))
	}
}
