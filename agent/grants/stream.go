package grants

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tsugiki/tsugiki/api"
)

const (
	// streamsMax is the number of streams at once: that of a giver, of the one that takes its place,
	// and of people who look.
	streamsMax = 8
	// eventsMax is the number of events that wait for a reader.
	eventsMax = 1024
)

// ErrStreams says that the number of streams is at its limit.
var ErrStreams = errors.New("too many streams of events")

// Stream has the events of a table since Watch. A reader that is too slow loses its stream, and not
// single events: then it knows that it has to look at everything again.
type Stream struct {
	// Events is closed when the stream was lost or closed.
	Events <-chan api.PodEvent

	events chan api.PodEvent
	table  *Table
}

// Watch begins a stream. Its first event is a PodReady. The caller closes it.
func (t *Table) Watch() (*Stream, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.streams) >= streamsMax {
		return nil, fmt.Errorf("%w: %d are open; end one", ErrStreams, streamsMax)
	}
	events := make(chan api.PodEvent, eventsMax)
	events <- api.PodEvent{Type: api.PodReady}
	s := &Stream{events, events, t}
	t.streams = append(t.streams, s)
	return s, nil
}

// Close ends a stream.
func (s *Stream) Close() {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	s.table.drop(s)
}

// drop ends a stream, unless it has ended. The caller holds mu.
func (t *Table) drop(s *Stream) {
	if i := slices.Index(t.streams, s); i >= 0 {
		t.streams = slices.Delete(t.streams, i, i+1)
		close(s.events)
	}
}

// Tell puts an event into all streams.
func (t *Table) Tell(e api.PodEvent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range slices.Clone(t.streams) {
		select {
		case s.events <- e:
		default:
			t.drop(s)
		}
	}
}
