package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tsugiki/tsugiki/agent/httpapi"
)

// handleTrace answers with a line for each decision about a container, until the container ends. If
// the answer ends for another reason, HTTP shows it as cut off.
func (d *Daemon) handleTrace(w http.ResponseWriter, r *http.Request) {
	m := d.find(r.PathValue("container"))
	if m == nil {
		httpapi.Refuse(w, httpapi.ErrNoContainer)
		return
	}
	defer d.traces.Add(-1)
	if d.traces.Add(1) > tracesMaxAll {
		httpapi.Refuse(w, fmt.Errorf("%w: %d of all containers; end one", httpapi.ErrTraces, tracesMaxAll))
		return
	}
	x, err := m.tracer.open()
	if err != nil {
		httpapi.Refuse(w, err)
		return
	}
	defer m.tracer.drop(x)
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Connection", "close")
	w.WriteHeader(http.StatusOK)
	// The server's limits are for requests that end. This answer waits for a slow reader as long as
	// the container lives.
	err = errors.Join(out.SetReadDeadline(time.Time{}), out.SetWriteDeadline(time.Time{}), out.Flush())
	stop := context.AfterFunc(x.ended, func() { _ = out.SetWriteDeadline(time.Now().Add(httpapi.Patience)) })
	defer stop()
	if err == nil && writeTrace(r.Context(), w, out, x) == nil {
		return
	}
	if conn, _, err := out.Hijack(); err == nil {
		conn.Close()
	}
}

// writeTrace writes the lines of a trace until it ends.
func writeTrace(ctx context.Context, w http.ResponseWriter, out *http.ResponseController, x *trace) error {
	for {
		select {
		case <-x.more:
		case <-x.ended.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
		last := x.ended.Err() != nil // if so, all lines before the end are there by now
		for _, line := range x.take() {
			if _, err := w.Write(line); err != nil {
				return err
			}
		}
		if err := out.Flush(); err != nil || last {
			return err
		}
	}
}
