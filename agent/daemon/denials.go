package daemon

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"sync"

	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/api"
)

// denialsKept is the number of denials that are kept per container.
const denialsKept = 64

// denials has the last denials of a container, each a line as in a trace.
type denials struct {
	mu    sync.Mutex // guards lines
	lines [][]byte
}

// Write takes a line.
func (d *denials) Write(line []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.lines) == denialsKept {
		d.lines = slices.Delete(d.lines, 0, 1)
	}
	d.lines = append(d.lines, bytes.Clone(line))
	return len(line), nil
}

// list returns the denials, the oldest first.
func (d *denials) list() ([]api.Denial, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := []api.Denial{}
	for _, line := range d.lines {
		var one api.Denial
		if err := json.Unmarshal(line, &one); err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, nil
}

// isDenial tells whether a record has the errno with which a call has failed.
func isDenial(r slog.Record) bool {
	is := false
	r.Attrs(func(a slog.Attr) bool {
		is = a.Key == "errno" && a.Value.String() != "0"
		return !is
	})
	return is
}

func (d *Daemon) handleDenials(w http.ResponseWriter, r *http.Request) {
	m := d.find(r.PathValue("container"))
	if m == nil {
		httpapi.Refuse(w, httpapi.ErrNoContainer)
		return
	}
	counts, ok := m.Counts()
	if !ok {
		httpapi.Refuse(w, httpapi.ErrNoContainer)
		return
	}
	last, err := m.tracer.denials.list()
	if err != nil {
		httpapi.Refuse(w, err)
		return
	}
	httpapi.Answer(w, http.StatusOK, api.Denials{Kernel: deniedOf(counts.Denied), Last: last})
}
